//! Messages of the gateway's protocol.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wsm_gateway::testing::messages(bytes));
