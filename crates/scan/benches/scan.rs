//! Measures the speed of the scanner with all outbound detectors. The texts resemble the requests of agents.
//!
//! The benchmark prints its budget and does not enforce it. The budget is 250 MB/s on one core for clean JSON of 10 KiB
//! with 10 secrets, and at most 1.5 times this duration with 1,000 secrets. The benchmark also prints each speed as a
//! share of the speed at which the crate `base64` decodes text in the same run. This share depends less on the machine
//! than the speed itself. Run the benchmark with `cargo bench -p bottle-scan`.

#[path = "../tests/clock/mod.rs"]
mod clock;

use std::fmt::Write;
use std::hint::black_box;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bottle_policy::secret::Secret;
use bottle_scan::{KnownSecrets, Scanner};
use clock::cpu_time;
use criterion::Criterion;

/// The speed in MB/s that the scanner should reach on clean JSON of 10 KiB with 10 secrets. The benchmark prints this
/// budget beside the measured speed.
const BUDGET: f64 = 250.0;

/// Returns a conversation with source code as JSON of about `length` bytes.
fn conversation(length: usize) -> Vec<u8> {
    let mut text = String::from("{\"model\":\"some-model\",\"max_tokens\":4096,\"messages\":[");
    let mut number = 0;
    while text.len() < length.saturating_sub(400) {
        number += 1;
        write!(
            text,
            "{{\"role\":\"user\",\"content\":[{{\"type\":\"text\",\"text\":\"Please read src/module_{number}.rs and say why \
             the test at line {number} fails:\\n    let value = table.get(&key).map(|entry| entry.size + {number});\\n    \
             assert_eq!(value, Some(\\\"{number}\\\"), \\\"of https://example.com/path/{number}?page=2\\\");\"}}]}},"
        )
        .expect("text");
    }
    text.push_str("{}]}");
    text.into_bytes()
}

fn secrets(count: u64) -> Vec<Secret> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..count).map(|_| Secret::new(format!("{:016x}-{:016X}+{}", next(), next(), next()))).collect()
}

/// Returns the texts with the highest cost. Each text is one long run of digits in some encoding.
fn hostile(length: usize) -> Vec<(&'static str, Vec<u8>)> {
    let mut state = 1_u64;
    let mut of = |alphabet: &str| -> Vec<u8> {
        let alphabet = alphabet.as_bytes();
        let next = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            alphabet[usize::try_from(state >> 33).unwrap_or_default() % alphabet.len()]
        };
        (0..length).map(next).collect()
    };
    let capitals = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut twice = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, of(letters));
    twice.truncate(length);
    vec![
        ("base64", of(letters)),
        ("base64 of base64", twice.into_bytes()),
        ("base32", of("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")),
        ("hexadecimal", of("0123456789abcdef")),
        ("capitals up to V", of(&capitals[..22])),
        ("zeros and ones", of("01")),
        ("numbers", of("0123456789 ,")),
        ("base85", of(&format!("{letters}!#$%&()*-;<=>?@^_`"))),
        ("lines", of("0123456789abcdef \n\n\n")),
        ("headers of zlib", "eJzLeJzLeJzL".repeat(length / 12).into_bytes()),
    ]
}

/// Returns bodies of about 2 KiB, the size of most requests.
fn short_bodies() -> [(&'static str, Vec<u8>); 3] {
    let prose = "The proxy opens its own verified connection upstream, and it decides each request by the rules. \
                 A request that no rule allows is denied, and the user sees why. Please explain how that works!\n\n";
    let code = "    /// Returns the entry of `key`, if there is one.\n    pub fn get(&self, key: &str) -> Option<&Entry> {\n        \
                let slot = self.slots.get(hash(key) % 64)?;\n        slot.iter().find(|entry| entry.key == key)\n    }\n\n";
    let cut = |text: &str| text.repeat(2048_usize.div_ceil(text.len())).into_bytes();
    [("prose", cut(prose)), ("code", cut(code)), ("JSON", conversation(2 << 10))]
}

/// The minimum CPU time of one measurement.
const MEASURED: Duration = Duration::from_millis(100);

/// Returns the resident memory of this process, in bytes.
fn resident() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/self/statm").ok()?;
    stat.split(' ').nth(1)?.parse::<u64>().ok().map(|pages| pages * 4096)
}

fn rate(scanner: &Scanner, text: &[u8]) -> f64 {
    rate_of(scanner, text, (64 << 20) / text.len())
}

/// Returns the speed of the scanner on `text` in MB/s.
fn rate_of(scanner: &Scanner, text: &[u8], rounds: usize) -> f64 {
    speed(text, rounds, |text| {
        black_box(scanner.scan(text));
    })
}

/// Returns the speed in MB/s at which the crate `base64` decodes a text.
fn yardstick() -> f64 {
    let text = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, conversation(768 << 10));
    speed(text.as_bytes(), 64, |text| {
        black_box(base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text).is_ok());
    })
}

/// Measures the speed of `run` three times. Returns the median in MB/s.
fn speed(text: &[u8], rounds: usize, mut run: impl FnMut(&[u8])) -> f64 {
    let mut speeds = [0; 3].map(|_| once(text, rounds.div_ceil(3), &mut run));
    speeds.sort_by(f64::total_cmp);
    speeds[1]
}

fn once(text: &[u8], rounds: usize, run: &mut impl FnMut(&[u8])) -> f64 {
    let (mut done, start) = (0, cpu_time());
    while done < rounds || cpu_time() - start < MEASURED {
        run(black_box(text));
        done += 1;
    }
    #[expect(clippy::cast_precision_loss, reason = "a figure to read")]
    let bytes = (done * text.len()) as f64;
    bytes / 1e6 / (cpu_time() - start).as_secs_f64()
}

fn main() -> io::Result<()> {
    let mut out = io::stdout();
    for count in [10, 50, 1000] {
        let (start, before) = (Instant::now(), resident());
        let known = Arc::new(KnownSecrets::new(&secrets(count)).expect("secrets"));
        let built = start.elapsed();
        let scanner = Scanner::outbound(known);
        let holds =
            before.and_then(|before| Some(resident()?.saturating_sub(before) >> 10)).unwrap_or_default();
        writeln!(
            out,
            "{count} secrets, prepared in {built:?}, {holds} KiB more in memory (budget 12 MiB with 1000)"
        )?;
        for (name, length) in [("10 KiB", 10 << 10), ("1 MiB", 1 << 20)] {
            let text = conversation(length);
            assert!(scanner.scan(&text).findings.is_empty(), "the text is clean");
            let rate = rate(&scanner, &text);
            writeln!(out, "  clean JSON of {name}: {rate:.0} MB/s (budget {BUDGET} with 10)")?;
            if count == 10 {
                writeln!(out, "ratio: scan / base64 decoding, JSON of {name} {:.4}", rate / yardstick())?;
            }
        }
    }
    let scanner = Scanner::outbound(Arc::new(KnownSecrets::new(&secrets(50)).expect("secrets")));
    for (name, text) in hostile(1 << 20) {
        let rate = rate_of(&scanner, &text, 6);
        writeln!(out, "hostile: 1 MiB of {name}: {rate:.1} MB/s")?;
        writeln!(out, "ratio: scan / base64 decoding, {name} {:.4}", rate / yardstick())?;
    }
    let inbound = Scanner::inbound(Arc::new(KnownSecrets::new(&secrets(1)).expect("secrets")));
    for (name, text) in short_bodies() {
        for (direction, scanner) in [("request", &scanner), ("response", &inbound)] {
            let rate = rate(scanner, &text);
            #[expect(clippy::cast_precision_loss, reason = "a figure to read")]
            let duration = text.len() as f64 / rate;
            writeln!(out, "short {direction}: {name} of 2 KiB: {duration:.2} µs")?;
        }
    }
    let words = |sentence: &str| sentence.repeat((1 << 20) / sentence.len()).into_bytes();
    for (name, text) in [
        ("JSON of 1 MiB", conversation(1 << 20)),
        ("prose", words("You are now reading the second line of a page, which has nothing to forget.\n")),
        (
            "HTML",
            words(
                "<li>One&nbsp;of the <b>items</b> &amp; a <a href=\"/x?y=%20z\">link</a> to ignore.</li>\n",
            ),
        ),
        ("keys of phrases", words("ignore ")),
        ("keys of phrases in escapes", words("ignore\\n")),
        ("first words of keys", words("you\\n")),
        ("marks", words("act****/* ")),
    ] {
        let rate = rate_of(&inbound, &text, 6);
        writeln!(out, "response: 1 MiB of {name}: {rate:.1} MB/s")?;
        writeln!(out, "ratio: response / base64 decoding, {name} {:.4}", rate / yardstick())?;
    }
    let text = conversation(10 << 10);
    let mut criterion = Criterion::default().measurement_time(Duration::from_secs(3)).configure_from_args();
    criterion
        .bench_function("scan 10 KiB, 50 secrets", |bencher| bencher.iter(|| scanner.scan(black_box(&text))));
    criterion.final_summary();
    Ok(())
}
