//! Fuzzes a complete connection to the proxy, with requests, introspection and tunnels. The only route leads
//! to a port without a listener.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bottle_egress::fuzzing::connection(bytes));
