//! Fuzzes the parser of the first bytes of a connection, which passthrough forwards unchanged.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bottle_egress::fuzzing::client_hello(bytes));
