//! WebSocket frames, and what is looked for in them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bottle_egress::fuzzing::messages(bytes));
