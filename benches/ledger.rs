//! Measures how fast the ledger ingests usage files and sums up the records.
//!
//! `cargo bench --bench ledger` prints the medians. `BOTTLE_BENCH_RECORDS` sets the number of records.
#![allow(missing_docs, clippy::print_stdout, clippy::cast_precision_loss)]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Instant;

use bottle_keeper::ledger::{GroupBy, Ledger};
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// The number of bottles with a usage file.
const BOTTLES: u64 = 100;

fn main() {
    let records = std::env::var("BOTTLE_BENCH_RECORDS").ok().and_then(|count| count.parse().ok());
    let records: u64 = records.unwrap_or(200_000);
    let directory = tempfile::tempdir().expect("directory");
    write_usage(directory.path(), records);
    let mut ledger = Ledger::open(directory.path()).expect("ledger");
    let start = Instant::now();
    let ingested = ledger.ingest(directory.path()).expect("ingest");
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(ingested.added as u64, records);
    println!("ingest: {records} records in {seconds:.2} s, {:.0} records/s", records as f64 / seconds);
    let bytes = fs::metadata(ledger.path()).expect("database").len();
    println!("size: {} bytes for each record", bytes / records);
    report("ingest, nothing new", || assert_eq!(ledger.ingest(directory.path()).expect("ingest").added, 0));
    for (name, by) in [("sum by day", GroupBy::Day), ("sum by provider", GroupBy::Provider)] {
        report(name, || drop(ledger.groups(by, Timestamp::UNIX_EPOCH, &TimeZone::UTC).expect("groups")));
    }
}

/// Runs `work` several times and prints the median duration.
fn report(name: &str, mut work: impl FnMut()) {
    let mut times: Vec<f64> = (0..5)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64() * 1000.0
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("{name}: {:.1} ms", times[times.len() / 2]);
}

fn write_usage(home: &Path, records: u64) {
    fs::create_dir(home.join("usage")).expect("directory");
    for bottle in 0..BOTTLES {
        let mut text = String::new();
        for number in (bottle..records).step_by(usize::try_from(BOTTLES).expect("small")) {
            // Each bottle has one response every ten seconds.
            let seconds = 1_769_860_800 + number / BOTTLES * 10;
            let time = Timestamp::from_second(i64::try_from(seconds).expect("time")).expect("time");
            // Makes ids in another order than the records, because real ids are random.
            let id = u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
            let _ = writeln!(
                text,
                "{{\"agent\":\"claude\",\"run\":\"{bottle:016x}\",\"template\":\"claude\",\"bottles\":[\"team\"],\
                 \"lineage\":[\"base\",\"team\"],\"id\":\"{id:032x}\",\"time\":\"{time}\",\"provider\":\"anthropic\",\
                 \"host\":\"api.anthropic.com\",\"api\":\"messages\",\"model\":\"claude-sonnet-4-5\",\"input\":4,\
                 \"output\":92,\"cached\":20512,\"cache_written\":1830,\"interrupted\":false,\"estimated\":false,\
                 \"provider_route\":true,\"source\":\"main\"}}"
            );
        }
        fs::write(home.join(format!("usage/bottle-{bottle}.jsonl")), text).expect("write");
    }
}
