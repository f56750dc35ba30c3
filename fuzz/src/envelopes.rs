//! Envelopes of the Connect protocol, with what happens to a command in an E2B sandbox.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wsm_e2b::testing::envelopes(bytes));
