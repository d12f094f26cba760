//! Tests the spellings in which programs print a secret. The scanner finds every spelling. It finds most spellings even
//! without their first or last character.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use bottle_policy::secret::Secret;
use bottle_scan::{KnownSecrets, Scanner};
use proptest::prelude::*;

/// A secret that matches no vendor's pattern. It contains characters that the encodings treat differently.
const SECRET: &str = "q7Kd93vXwpT2mB8ySe4Lh5/Rf0Nc+Zu6Jt1Gy";

fn scanner(secret: &str) -> Scanner {
    let known = KnownSecrets::new(&[Secret::new(secret.to_owned())]).expect("secrets");
    Scanner::outbound(Arc::new(known)).with_tokens(false)
}

/// Converts each byte with `write`, and joins the results with `between`.
fn each(text: &str, between: &str, write: impl Fn(u8) -> String) -> String {
    text.bytes().map(write).collect::<Vec<_>>().join(between)
}

/// Reads `text` as little-endian words of `length` bytes.
fn words(text: &str, length: usize) -> Vec<u64> {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    text.as_bytes().chunks(length).map(word).collect()
}

/// Prints numbers as `od` does, in lines that begin with an octal offset.
fn od(numbers: &[String], a_line: usize, bytes: usize) -> String {
    let mut text = String::new();
    for (line, row) in numbers.chunks(a_line).enumerate() {
        writeln!(text, "{:07o} {}", line * a_line * bytes, row.join(" ")).expect("text");
    }
    text
}

fn od_words(text: &str, length: usize, write: impl Fn(u64) -> String) -> String {
    let numbers: Vec<String> = words(text, length).into_iter().map(write).collect();
    od(&numbers, 16 / length, length)
}

fn xxd(text: &str) -> String {
    let mut lines = String::new();
    for (line, row) in text.as_bytes().chunks(16).enumerate() {
        let hex: Vec<String> = row.chunks(2).map(hex::encode).collect();
        let shown = String::from_utf8_lossy(row);
        writeln!(lines, "{:08x}: {:39}  {shown}", line * 16, hex.join(" ")).expect("text");
    }
    lines
}

fn hexdump(text: &str) -> String {
    let mut lines = String::new();
    for (line, row) in text.as_bytes().chunks(16).enumerate() {
        let half = |half: &[u8]| half.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
        let (first, second) = row.split_at(row.len().min(8));
        let shown = String::from_utf8_lossy(row);
        writeln!(lines, "{:08x}  {:23}  {:23}  |{shown}|", line * 16, half(first), half(second))
            .expect("text");
    }
    lines
}

fn wrapped(text: &str, width: usize) -> String {
    let lines = text.as_bytes().chunks(width).map(String::from_utf8_lossy);
    lines.collect::<Vec<_>>().join("\n")
}

fn gzip(text: &str) -> Vec<u8> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    writer.write_all(format!("the key is {text}, the key is {text}").as_bytes()).expect("written");
    writer.finish().expect("gzip")
}

fn zlib(text: &str) -> Vec<u8> {
    let mut writer = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    writer.write_all(text.as_bytes()).expect("written");
    writer.finish().expect("zlib")
}

const ASCII85: &[u8; 85] =
    b"!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstu";
const RFC1924: &[u8; 85] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";

fn base85(text: &str, alphabet: &[u8; 85]) -> String {
    let mut written = String::new();
    for chunk in text.as_bytes().chunks(4) {
        let mut value =
            chunk.iter().chain([0; 4].iter()).take(4).fold(0_u32, |all, byte| all << 8 | u32::from(*byte));
        let mut digits = [0; 5];
        for digit in digits.iter_mut().rev() {
            *digit = alphabet[(value % 85) as usize];
            value /= 85;
        }
        written.extend(digits[..=chunk.len()].iter().map(|digit| char::from(*digit)));
    }
    written
}

fn uuencode(text: &str) -> String {
    let digit =
        |value: u32| char::from(u8::try_from(if value == 0 { 96 } else { value + 32 }).expect("small"));
    let mut written = String::from("begin 644 key\n");
    for line in text.as_bytes().chunks(45) {
        written.push(digit(u32::try_from(line.len()).expect("short")));
        for three in line.chunks(3) {
            let group = three
                .iter()
                .chain([0; 3].iter())
                .take(3)
                .fold(0_u32, |all, byte| all << 8 | u32::from(*byte));
            written.extend([18, 12, 6, 0].map(|shift| digit(group >> shift & 63)));
        }
        written.push('\n');
    }
    written + "`\nend\n"
}

fn base58(text: &str) -> String {
    const ALPHABET: &[u8] = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
    let mut digits: Vec<u32> = Vec::new();
    for byte in text.bytes() {
        let mut carry = u32::from(byte);
        for digit in &mut digits {
            carry += *digit << 8;
            *digit = carry % 58;
            carry /= 58;
        }
        while carry > 0 {
            digits.push(carry % 58);
            carry /= 58;
        }
    }
    digits.iter().rev().map(|digit| char::from(ALPHABET[*digit as usize])).collect()
}

fn rot13(text: &str) -> String {
    let turn = |letter: char, first: u8| char::from((letter as u8 - first + 13) % 26 + first);
    let rotate = |letter| match letter {
        'a'..='z' => turn(letter, b'a'),
        'A'..='Z' => turn(letter, b'A'),
        other => other,
    };
    text.chars().map(rotate).collect()
}

fn bits(text: &str) -> String {
    each(text, "", |byte| format!("{byte:08b}"))
}

/// Returns the names of programs, each with an output of the program that contains the secret `s`.
fn spellings(s: &str) -> Vec<(&'static str, String)> {
    let utf16: Vec<u8> = s.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let halves = s.split_at(s.len() / 2);
    vec![
        ("echo", s.to_owned()),
        ("rev", s.chars().rev().collect()),
        ("tr a-z A-Z", s.to_uppercase()),
        ("tr A-Z a-z", s.to_lowercase()),
        ("rot13", rot13(s)),
        ("fold -w1", each(s, "\n", |byte| char::from(byte).to_string())),
        ("sed 's/./& /g'", each(s, " ", |byte| char::from(byte).to_string())),
        ("sed 's/..../&-/g'", wrapped(s, 4).replace('\n', "-")),
        ("printf %q", each(s, "", |byte| format!("\\{}", char::from(byte)))),
        ("escape() of JavaScript", each(s, "", |byte| format!("%u{byte:04X}"))),
        ("base64", STANDARD.encode(s)),
        ("base64 -w64, with a name before it", wrapped(&STANDARD.encode(format!("key={s}{s}")), 64)),
        (
            "base64 -w76, a file",
            wrapped(&STANDARD.encode(format!("[default]\naws_secret_access_key = {s}\n")), 76),
        ),
        ("base64 -w20", wrapped(&STANDARD.encode(s), 20)),
        ("base64, URL-safe without padding", URL_SAFE_NO_PAD.encode(s)),
        ("base64 of base64", STANDARD.encode(STANDARD.encode(s))),
        ("base64 of UTF-16 (PowerShell)", STANDARD.encode(&utf16)),
        ("gzip | base64", STANDARD.encode(gzip(s))),
        ("zlib | base64, wrapped", wrapped(&STANDARD.encode(zlib(s)), 19)),
        ("gzip | xxd -p", wrapped(&hex::encode(gzip(s)), 60)),
        ("base32", data_encoding::BASE32.encode(s.as_bytes())),
        ("base32, wrapped", wrapped(&data_encoding::BASE32.encode(s.as_bytes()), 24)),
        ("base32hex", data_encoding::BASE32HEX.encode(s.as_bytes())),
        ("base32, lower case", data_encoding::BASE32_NOPAD.encode(s.as_bytes()).to_lowercase()),
        ("base58", base58(s)),
        ("Ascii85", base85(s, ASCII85)),
        ("base85 (Python)", base85(s, RFC1924)),
        ("uuencode", uuencode(s)),
        (
            "quoted-printable, wrapped",
            each(&wrapped(s, 11), "", |byte| match byte {
                b'\n' => "=\n".to_owned(),
                other => char::from(other).to_string(),
            }),
        ),
        ("quoted-printable, every byte", each(s, "", |byte| format!("={byte:02X}"))),
        ("xxd -p", wrapped(&hex::encode(s), 20)),
        ("xxd", xxd(s)),
        ("hexdump -C", hexdump(s)),
        ("hexdump", od_words(s, 2, |word| format!("{word:04x}"))),
        ("od", od_words(s, 2, |word| format!("{word:06o}"))),
        ("od -b", od(&s.bytes().map(|byte| format!("{byte:03o}")).collect::<Vec<_>>(), 16, 1)),
        ("od -c", od(&s.chars().map(|letter| format!("  {letter}")).collect::<Vec<_>>(), 16, 1)),
        ("od -t x1", od(&s.bytes().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>(), 16, 1)),
        ("od -t x4", od_words(s, 4, |word| format!("{word:08x}"))),
        ("od -t u2", od_words(s, 2, |word| format!("{word:5}"))),
        ("od -t d8", od_words(s, 8, |word| format!("{word:20}"))),
        ("od -An -t u1", each(s, "", |byte| format!(" {byte:3}"))),
        ("hex with colons", each(s, ":", |byte| format!("{byte:02X}"))),
        ("hex with spaces", each(s, " ", |byte| format!("{byte:02x}"))),
        ("a list in C", each(s, ", ", |byte| format!("0x{byte:02x}"))),
        ("bytes in Java", each(s, ", ", |byte| format!("(byte) 0x{byte:02X}"))),
        ("\\x41", each(s, "", |byte| format!("\\x{byte:02x}"))),
        ("\\u0041", each(s, "", |byte| format!("\\u{:04X}", u32::from(byte)))),
        ("\\u{41}", each(s, "", |byte| format!("\\u{{{byte:x}}}"))),
        ("\\U00000041 in Python", each(s, "", |byte| format!("\\U{:08x}", u32::from(byte)))),
        ("\\101", each(s, "", |byte| format!("\\{byte:03o}"))),
        (
            "Buffer as JSON",
            format!("{{\"type\":\"Buffer\",\"data\":[{}]}}", each(s, ",", |byte| byte.to_string())),
        ),
        ("Uint8Array as JSON", {
            let fields = s.bytes().enumerate().map(|(index, byte)| format!("\"{index}\":{byte}"));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        }),
        ("console.log of a Buffer", format!("<Buffer {}>", each(s, " ", |byte| format!("{byte:02x}")))),
        ("String.fromCharCode", format!("String.fromCharCode({})", each(s, ",", |byte| byte.to_string()))),
        ("chr() + chr()", each(s, "+", |byte| format!("chr({byte})"))),
        ("pretty JSON of bytes", format!("[\n{}\n]", each(s, ",\n", |byte| format!("        {byte}")))),
        ("Rust's {:?} of bytes", format!("[{}]", each(s, ", ", |byte| byte.to_string()))),
        ("Go's %v of bytes", format!("[{}]", each(s, " ", |byte| byte.to_string()))),
        ("bits", each(s, " ", |byte| format!("{byte:08b}"))),
        ("bits without spaces", bits(s)),
        ("%41", each(s, "", |byte| format!("%{byte:02X}"))),
        ("a form", percent_encoding::utf8_percent_encode(s, percent_encoding::NON_ALPHANUMERIC).to_string()),
        ("a form twice", each(s, "", |byte| format!("%25{byte:02x}"))),
        ("&#65;", each(s, "", |byte| format!("&#{byte};"))),
        ("&#x41;", each(s, "", |byte| format!("&#x{byte:X};"))),
        ("&#0065;", each(s, "", |byte| format!("&#{byte:07};"))),
        ("&#x00041;", each(s, "", |byte| format!("&#x{byte:09x};"))),
        ("JSON in JSON", serde_json::Value::from(serde_json::Value::from(s).to_string()).to_string()),
        ("\"ab\" + \"cd\"", each(s, "\" + \"", |byte| char::from(byte).to_string())),
        ("two fields", format!("{{\"a\":\"{}\",\"b\":\"{}\"}}", halves.0, halves.1)),
        ("base64 in strings", wrapped(&STANDARD_NO_PAD.encode(s), 10).replace('\n', "\" + \"")),
        ("base64 in lines of JSON", wrapped(&STANDARD.encode(s), 16).replace('\n', "\\n")),
        ("CSV", each(s, ",", |byte| char::from(byte).to_string())),
        ("full width", s.chars().filter_map(|letter| char::from_u32(u32::from(letter) + 0xfee0)).collect()),
        ("UTF-16", String::from_utf8_lossy(&utf16).into_owned()),
        ("xxd of UTF-16", wrapped(&hex::encode(&utf16), 32)),
    ]
}

#[test]
fn finds_the_output_of_programs() {
    let scanner = scanner(SECRET);
    let all = spellings(SECRET);
    let missed: Vec<&str> = all
        .iter()
        .filter(|(_, text)| {
            let around = [text.clone(), format!("the output was:\n{text}\nand nothing else\n")];
            let json = serde_json::json!({ "content": around[1] }).to_string();
            ![&around[0], &around[1], &json]
                .iter()
                .all(|text| !scanner.scan(text.as_bytes()).findings.is_empty())
        })
        .map(|(name, _)| *name)
        .collect();
    assert_eq!(missed, [""; 0], "of {}", all.len());
}

#[test]
fn finds_a_spelling_without_its_ends() {
    let scanner = scanner(SECRET);
    let missed: Vec<&str> = spellings(SECRET)
        .into_iter()
        // These spellings are one large number, or cannot be decoded without their first characters.
        .filter(|(name, _)| !["base58", "uuencode"].contains(name) && !name.contains("zlib"))
        .filter(|(_, text)| {
            let characters: Vec<char> = text.chars().collect();
            let cut = |range: std::ops::Range<usize>| characters[range].iter().collect::<String>();
            [cut(1..characters.len()), cut(0..characters.len() - 1), cut(2..characters.len() - 2)]
                .iter()
                // A compressed spelling cannot be decoded without its header, so only its end is cut off.
                .skip(usize::from(name_is_packed(text)))
                .take(if name_is_packed(text) { 1 } else { 3 })
                .any(|text| scanner.scan(text.as_bytes()).findings.is_empty())
        })
        .map(|(name, _)| name)
        .collect();
    assert_eq!(missed, [""; 0]);
}

fn name_is_packed(text: &str) -> bool {
    text.starts_with("H4sI") || text.starts_with("1f8b08")
}

#[test]
fn ignores_clean_text_in_every_spelling() {
    let scanner = scanner(SECRET);
    for (name, text) in spellings("N4cR-f0Zq/1uG+yJt6Kd39Xvw2TpBm8eSyh5L") {
        assert_eq!(scanner.scan(text.as_bytes()).findings, [], "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn a_stream_of_spellings_yields_the_result_of_the_text(
        places in prop::collection::vec((0_usize..150_000, any::<prop::sample::Index>()), 1..6),
        borders in prop::collection::vec((65_000_usize..65_560, any::<prop::sample::Index>()), 0..3),
        cuts in prop::collection::vec(1_usize..50_000, 0..30),
    ) {
        let scanner = scanner(SECRET);
        let all = spellings(SECRET);
        let mut text: Vec<u8> = "lorem ipsum % dolor, \\n &".bytes().cycle().take(150_000).collect();
        for (place, way) in places.into_iter().chain(borders) {
            let piece = way.get(&all).1.as_bytes();
            let end = text.len().min(place + piece.len());
            text[place..end].copy_from_slice(&piece[..end - place]);
        }
        let whole = scanner.scan(&text);
        let mut stream = scanner.stream();
        let mut rest = text.as_slice();
        for cut in cuts {
            let (now, later) = rest.split_at(rest.len().min(cut));
            stream.feed(now);
            rest = later;
        }
        stream.feed(rest);
        prop_assert_eq!(stream.finish(), whole);
    }
}

/// Files are scanned verbatim. Escapes are still decoded, because files contain JSON.
#[test]
fn a_verbatim_scan_finds_secrets_as_programs_write_them() {
    let scanner = scanner(SECRET).verbatim();
    let escaped = SECRET.replace('/', "\\/");
    let encoded = STANDARD.encode(SECRET);
    let split = each(SECRET, " ", |byte| char::from(byte).to_string());
    for (text, found) in [(SECRET, true), (&escaped, true), (&encoded, false), (&split, false)] {
        let findings = scanner.scan(format!("key: {text}\n").as_bytes()).findings;
        assert_eq!(!findings.is_empty(), found, "{text}");
    }
}
