//! Fuzzes a whole connection to the proxy: requests, introspection, tunnels. Its one route has a port without a listener.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bottle_egress::fuzzing::connection(bytes));
