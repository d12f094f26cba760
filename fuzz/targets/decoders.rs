//! Fuzzes content codings: the same text for any chunking.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bottle_egress::fuzzing::decoders(bytes));
