//! Content codings: the same text however it is cut.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bottle_egress::fuzzing::decoders(bytes));
