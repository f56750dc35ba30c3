//! Members of an archive that is to be unpacked.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wsm_gateway::testing::members(bytes));
