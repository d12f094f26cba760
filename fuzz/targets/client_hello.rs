//! Fuzzes the first bytes of a connection: passthrough forwards them unchanged.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bottle_egress::fuzzing::client_hello(bytes));
