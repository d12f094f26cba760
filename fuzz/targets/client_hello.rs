//! The first bytes of a connection: what is not opened goes on byte for byte.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bottle_egress::fuzzing::client_hello(bytes));
