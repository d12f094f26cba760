//! Fuzzes the parser of the first bytes of a connection that the proxy may forward unchanged (passthrough).
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bottle_egress::fuzzing::client_hello(bytes));
