//! Fuzzes the parser of WebSocket frames and the scan of WebSocket messages.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bottle_egress::fuzzing::messages(bytes));
