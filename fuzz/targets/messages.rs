//! Fuzzes WebSocket frames and the scan of their messages.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bottle_egress::fuzzing::messages(bytes));
