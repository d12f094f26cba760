//! Fuzzes the parser of a table of references. No table makes it panic, and its limits hold.
#![no_main]

use bottle_repository::reftable::table::{Limits, Table};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some(table) = Table::parse(bytes) else { return };
    let (mut names, mut count) = (0_usize, 0_usize);
    let each = |name: &[u8], _| {
        names += name.len();
        count += 1;
    };
    let _ = table.references(&mut Limits::default(), each);
    assert!(count <= 1_000_000 && names <= 256 << 20, "{count} references with {names} bytes");
});
