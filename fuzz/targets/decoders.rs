//! Fuzzes the decoders of content codings. The decoded text must not depend on how the input is divided into
//! chunks.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bottle_egress::fuzzing::decoders(bytes));
