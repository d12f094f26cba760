//! A whole connection to the proxy: requests, introspection, tunnels. Its one route leads to a port without anybody.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bottle_egress::fuzzing::connection(bytes));
