//! Private keys in text: of every kind, as long as they are, and however their lines are written.

use std::fmt::Write;
use std::process::Command;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bottle_scan::{KnownSecrets, Report, Scanner, Shape, rewrite};

fn scanner() -> Scanner {
    Scanner::outbound(Arc::new(KnownSecrets::new(&[]).expect("none")))
}

/// Base64 of made-up bytes, so that no key stands in this repository.
fn body(length: usize, seed: u64) -> String {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let bytes: Vec<u8> = (0..length * 3 / 4)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_be_bytes()[0]
        })
        .collect();
    STANDARD.encode(bytes)
}

fn wrapped(body: &str, width: usize) -> String {
    let lines: Vec<&str> =
        body.as_bytes().chunks(width).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    lines.join("\n")
}

/// What stands before and after the body of each kind.
const KINDS: [(&str, &str); 15] = [
    ("-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"),
    (
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,3F17F5316E2BAC89AA28F1D5B0DF1A2C\n",
        "-----END RSA PRIVATE KEY-----",
    ),
    ("-----BEGIN EC PRIVATE KEY-----", "-----END EC PRIVATE KEY-----"),
    ("-----BEGIN DSA PRIVATE KEY-----", "-----END DSA PRIVATE KEY-----"),
    ("-----BEGIN OPENSSH PRIVATE KEY-----", "-----END OPENSSH PRIVATE KEY-----"),
    ("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"),
    ("-----BEGIN ENCRYPTED PRIVATE KEY-----", "-----END ENCRYPTED PRIVATE KEY-----"),
    ("-----BEGIN PGP PRIVATE KEY BLOCK-----\nComment: a key\n", "=aB3d\n-----END PGP PRIVATE KEY BLOCK-----"),
    ("-----BEGIN X25519 PRIVATE KEY-----", "-----END X25519 PRIVATE KEY-----"),
    ("-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----", "-----END ENCRYPTED SIGSTORE PRIVATE KEY-----"),
    ("-----BEGIN TSS2 PRIVATE KEY-----", "-----END TSS2 PRIVATE KEY-----"),
    (
        "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nComment: \"rsa-key\"",
        "---- END SSH2 ENCRYPTED PRIVATE KEY ----",
    ),
    (
        "PuTTY-User-Key-File-3: ssh-rsa\nEncryption: none\nComment: a\nPublic-Lines: 1\nAAAAB3NzaC1yc2E=\nPrivate-Lines: 14",
        "Private-MAC: 5ca3d27a1eb06b3dbef8b2ce5a2a4b2cdbb7a8b3d2a1c2fb7d8e3a1c3b9f7e60",
    ),
    ("untrusted comment: minisign encrypted secret key", ""),
    ("untrusted comment: signify secret key", ""),
];

/// Ways to write `text`, which has one line after the other.
fn spellings(text: &str) -> Vec<(&'static str, String)> {
    let each = |write: &dyn Fn(usize, &str) -> String| {
        text.lines().enumerate().map(|(number, line)| write(number, line) + "\n").collect::<String>()
    };
    let json = |text: &str| serde_json::Value::from(text).to_string();
    let mut all = vec![
        ("as it is", text.to_owned()),
        ("CRLF", text.replace('\n', "\r\n")),
        ("CR", text.replace('\n', "\r")),
        ("one line", text.replace('\n', " ")),
        ("without breaks", text.replace('\n', "")),
        ("double-spaced", text.replace('\n', "\n\n")),
        ("JSON", json(text)),
        ("JSON in JSON", json(&json(text))),
        ("JSON three deep", json(&json(&json(text)))),
        ("a literal \\n", text.replace('\n', "\\n")),
        ("a literal \\\\n", text.replace('\n', "\\\\n")),
        ("a literal \\r\\n", text.replace('\n', "\\r\\n")),
        ("HTML", text.replace('\n', "<br>\n")),
        ("HTML in one line", text.replace('\n', "<br/>")),
        ("HTML entities", text.replace('\n', "&#10;")),
        (
            "a URL",
            percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string(),
        ),
        (
            "a form",
            format!(
                "key={}",
                percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC)
                    .to_string()
                    .replace("%20", "+")
            ),
        ),
        ("base64", STANDARD.encode(text)),
        ("base64 in lines", wrapped(&STANDARD.encode(text), 76)),
        ("base64 in JSON", json(&wrapped(&STANDARD.encode(text), 64))),
        ("lines with numbers", each(&|number, line| format!("{:>6}\t{line}", number + 1))),
        ("lines of grep", each(&|number, line| format!("id_rsa:{}:{line}", number + 1))),
        ("arrows of a viewer", each(&|number, line| format!("{:>4}→{line}", number + 1))),
        ("colours", each(&|_, line| format!("\u{1b}[1;32m{line}\u{1b}[0m"))),
        ("a Python string in pieces", each(&|_, line| format!("    \"{line}\\n\""))),
        ("a Java string in pieces", each(&|_, line| format!("        \"{line}\\n\" +"))),
        ("a JavaScript string in pieces", each(&|_, line| format!("  '{line}\\n' +"))),
        ("a string continued by a backslash", each(&|_, line| format!("{line}\\n\\"))),
        ("a C string in lines", each(&|_, line| format!("\t\"{line}\\r\\n\" \\"))),
        ("an array of lines", each(&|_, line| format!("  \"{line}\","))),
        ("a Go raw string", format!("const key = `{text}`")),
        ("a YAML block", format!("key: |\n{}", each(&|_, line| format!("    {line}")))),
        ("a YAML block, folded", format!("key: >-\n{}", each(&|_, line| format!("  {line}\n")))),
        ("echo lines", each(&|_, line| format!("echo \"{line}\" >> ~/.ssh/id"))),
        ("echo lines of Windows", each(&|_, line| format!("@echo {line}>> id"))),
        ("a here document", format!("cat > id <<EOF\n{text}\nEOF")),
        ("a Makefile", format!("define KEY\n{text}\nendef")),
        ("a Dockerfile", format!("ENV KEY=\"{}\"", text.replace('\n', "\\n\\\n"))),
        ("an .env file", format!("KEY=\"{}\"", text.replace('\n', "\\n"))),
        ("a diff", format!("@@ -0,0 +1,30 @@\n{}", each(&|_, line| format!("+{line}")))),
        ("XML", format!("<key><![CDATA[\n{text}\n]]></key>")),
        ("a table of Markdown", each(&|number, line| format!("| {number} | `{line}` |"))),
        (
            "narrow lines",
            each(&|_, line| if line.contains(' ') { line.to_owned() } else { wrapped(line, 12) }),
        ),
    ];
    for prefix in [
        "> ",
        ">> ",
        "> > ",
        "| ",
        "# ",
        "// ",
        "* ",
        " * ",
        "+ ",
        "- ",
        "  ",
        "\t",
        "-- ",
        "; ",
        "% ",
        "REM ",
        "dnl ",
        "\u{2502} ",
    ] {
        all.push((prefix, each(&|_, line| format!("{prefix}{line}"))));
    }
    all
}

/// The pieces of `body` of which none may be left in `text`, however that is written.
fn left(text: &str, body: &str) -> Vec<String> {
    let text: String =
        text.chars().filter(|letter| letter.is_ascii_alphanumeric() || "+/".contains(*letter)).collect();
    let body = body.trim_end_matches('=');
    body.as_bytes()
        .chunks(24)
        .map(|piece| String::from_utf8_lossy(piece).into_owned())
        .filter(|piece| piece.len() == 24 && text.contains(piece.as_str()))
        .collect()
}

fn streamed(scanner: &Scanner, text: &[u8], size: usize) -> Report {
    let mut stream = scanner.stream();
    text.chunks(size).for_each(|piece| stream.feed(piece));
    stream.finish()
}

/// Found, and gone when it is redacted.
fn wrong(scanner: &Scanner, text: &str, body: &str, shape: Shape) -> Option<String> {
    let report = scanner.scan(text.as_bytes());
    if report.findings.is_empty() {
        return Some("it is not found".to_owned());
    }
    if streamed(scanner, text.as_bytes(), 7919) != report {
        return Some("a stream says something else".to_owned());
    }
    let made = rewrite(text.as_bytes(), &report.findings, shape);
    let again = scanner.scan(&made);
    let made = String::from_utf8_lossy(&made);
    let left = left(&made, body);
    if !left.is_empty() {
        return Some(format!("{} pieces are left", left.len()));
    }
    (!again.findings.is_empty()).then(|| format!("it is found again: {again:?}"))
}

#[test]
fn a_private_key_is_found_and_redacted_whole_however_it_is_written() {
    let scanner = scanner();
    let mut all = String::new();
    let mut count = 0;
    for (number, (begin, end)) in KINDS.into_iter().enumerate() {
        // Of an elliptic curve, and of RSA with 2048, 8192 and 16384 bits.
        for length in [160, 1600, 6300, 12_600] {
            let body = body(length, number as u64 + length as u64);
            let text = format!("{begin}\n{}\n{end}", wrapped(&body, 64));
            for (name, written) in spellings(&text) {
                count += 1;
                let (written, shape) = if name.contains("JSON") {
                    (
                        format!(
                            "{{\"text\":{}}}",
                            if written.starts_with('"') { written } else { format!("{written:?}") }
                        ),
                        Shape::Json,
                    )
                } else {
                    (format!("see here:\n{written}\nand more\n"), Shape::Text)
                };
                if let Some(why) = wrong(&scanner, &written, &body, shape) {
                    writeln!(all, "{length} bytes, {begin:.50?}, {name:?}: {why}").expect("text");
                }
            }
        }
    }
    assert!(all.is_empty(), "of {count}:\n{all}");
}

#[test]
fn the_shortest_keys_are_found_whatever_their_bytes() {
    let scanner = scanner();
    // A key of X25519: sixteen bytes that all have, and 32 of its own.
    let head = "MC4CAQAwBQYDK2VuBCIEI";
    let missed = (0..3000).filter(|seed| {
        let text = format!("-----BEGIN PRIVATE KEY-----{head}{}", &body(200, *seed)[100..143]);
        !scanner.scan(text.as_bytes()).findings.iter().any(|finding| &*finding.rule == "pkcs8-private-key")
    });
    assert_eq!(missed.collect::<Vec<_>>(), Vec::<u64>::new());
}

#[test]
fn a_body_of_many_windows_is_redacted_to_its_end() {
    let scanner = scanner();
    for before in [0, 60_000, 65_400, 65_500, 65_530] {
        for (begin, end) in [KINDS[0], ("-----BEGIN PRIVATE KEY-----", "")] {
            let body = body(300_000, before + 7);
            let text = format!("{begin}\n{}\n{end}\n", wrapped(&body, 64));
            let filler = "some words of a text\n".repeat(4000);
            let filler = filler[..usize::try_from(before).expect("small")].to_owned() + "\n";
            for (name, text, shape) in [
                ("plain", text.clone(), Shape::Text),
                ("quoted", text.lines().map(|line| format!("> {line}\n")).collect(), Shape::Text),
                ("JSON", serde_json::Value::from(text.as_str()).to_string(), Shape::Json),
                ("base64", STANDARD.encode(&text), Shape::Text),
            ] {
                let text = if shape == Shape::Json { text } else { format!("{filler}{text}{filler}") };
                let why = wrong(&scanner, &text, &body, shape);
                assert_eq!(why, None, "{name} after {before} bytes of text, {begin}");
                let report = scanner.scan(text.as_bytes());
                let of_it = report.findings.iter().filter(|finding| finding.span.start < before + 200);
                assert_eq!(of_it.count(), 1, "{name} {before}: {report:?}");
            }
        }
    }
}

#[test]
fn what_only_speaks_of_keys_is_clean() {
    let scanner = scanner();
    let certificate =
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", wrapped(&body(900, 3), 64));
    for text in [
        "if text.startswith(\"-----BEGIN RSA PRIVATE KEY-----\"):\n    return Kind::Rsa;\n".repeat(30),
        format!("const BEGIN: &str = \"-----BEGIN PRIVATE KEY-----\";\n{certificate}"),
        format!("-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----\n{certificate}"),
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA...\n-----END RSA PRIVATE KEY-----\n".to_owned(),
        "-----BEGIN OPENSSH PRIVATE KEY-----\n<your key>\n-----END OPENSSH PRIVATE KEY-----\n".to_owned(),
        format!("-----BEGIN EC PRIVATE KEY-----\n{}\n-----END EC PRIVATE KEY-----\n", "x".repeat(200)),
        "The line BEGIN PRIVATE KEY is followed by a body that is base64, as RFC 7468 says.\n".repeat(40),
        format!(
            "pub const PRIVATE_KEY_BEGIN: &[u8] = b\"-----BEGIN PRIVATE KEY-----\";\n{}",
            "impl PrivatePkcs8KeyDer<'_> { pub fn secret_pkcs8_der(&self) -> &[u8] { self.0.as_ref() } }\n"
                .repeat(30)
        ),
        format!(
            "Private-Lines: how many lines follow\n{}",
            "let publicKeyBlob = readUTF8StringFromFile(path);\n".repeat(40)
        ),
    ] {
        assert_eq!(scanner.scan(text.as_bytes()).findings, [], "{text:.200}");
    }
}

#[test]
fn many_openings_cost_no_more_than_their_bytes() {
    let scanner = scanner();
    let body = body(48, 5);
    for piece in [
        "-----BEGIN RSA PRIVATE KEY-----\n".to_owned(),
        "BEGIN PRIVATE KEY".to_owned(),
        "PRIVATE KEY".to_owned(),
        "Private-Lines:".to_owned(),
        format!("-----BEGIN PRIVATE KEY-----\n{}\n", &body[..39]),
        "client-key-data".to_owned(),
    ] {
        let text = piece.repeat((2 << 20) / piece.len());
        let start = std::time::Instant::now();
        let _ = scanner.scan(text.as_bytes());
        let took = start.elapsed();
        // A debug build on a machine that has other things to do; what is quadratic takes minutes.
        assert!(took.as_secs() < 20, "{piece:?}: {took:?}");
    }
}

/// Runs a program in `folder`; none when it is not on this machine.
fn made(folder: &std::path::Path, program: &str, arguments: &[&str]) -> Option<Vec<u8>> {
    let output =
        Command::new(program).args(arguments).current_dir(folder).env("GNUPGHOME", folder).output().ok()?;
    output.status.success().then_some(output.stdout)
}

#[test]
fn keys_of_real_programs_are_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path();
    let scanner = scanner();
    let mut keys: Vec<(String, Vec<u8>)> = Vec::new();
    for arguments in [
        "genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048",
        "genrsa -traditional 2048",
        "genrsa -traditional -aes256 -passout pass:x 2048",
        "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256",
        "ecparam -name prime256v1 -genkey -noout",
        "genpkey -algorithm ED25519",
        "genpkey -algorithm X25519",
        "genpkey -algorithm ED448",
        "genpkey -algorithm ED25519 -aes256 -pass pass:x",
    ] {
        let words: Vec<&str> = arguments.split(' ').collect();
        keys.extend(made(at, "openssl", &words).map(|key| (arguments.to_owned(), key)));
    }
    for (kind, word) in [("ed25519", ""), ("ecdsa", ""), ("rsa", ""), ("ed25519", "secret")] {
        let file = format!("{kind}{word}");
        if made(at, "ssh-keygen", &["-q", "-t", kind, "-N", word, "-f", &file]).is_some() {
            keys.push((format!("ssh-keygen {kind} {word:?}"), std::fs::read(at.join(&file)).expect("a key")));
        }
    }
    for (number, kind) in ["ed25519", "rsa2048", "nistp256"].into_iter().enumerate() {
        for word in ["", "secret"] {
            let name = format!("n{number}{word}@example.net");
            let common = ["--batch", "--pinentry-mode", "loopback", "--passphrase", word];
            let make: Vec<&str> =
                [&common[..], &["--quick-generate-key", name.as_str(), kind, "default", "never"]].concat();
            if made(at, "gpg", &make).is_none() {
                continue;
            }
            // A key for encryption too, where the first is not one.
            for armour in [&["--armor"][..], &[]] {
                let export = [&common[..], armour, &["--export-secret-keys", name.as_str()]].concat();
                let key = made(at, "gpg", &export).expect("exported");
                keys.push((format!("gpg {kind} {word:?} {armour:?}"), key));
            }
        }
    }
    let _ = made(at, "gpgconf", &["--kill", "all"]);
    assert!(!keys.is_empty(), "neither openssl nor ssh-keygen nor gpg is here");
    let mut all = String::new();
    for (name, key) in &keys {
        let mut texts = vec![("alone", key.clone()), ("base64", STANDARD.encode(key).into_bytes())];
        texts.push((
            "in other bytes",
            [&[0xff, 0x94, 0x95, 0xc5, 0, 4][..], key, b"\xc3\x28 and more"].concat(),
        ));
        if let Ok(text) = std::str::from_utf8(key) {
            texts.extend(spellings(text).into_iter().map(|(name, text)| (name, text.into_bytes())));
        }
        for (spelling, text) in texts {
            let report = scanner.scan(&text);
            let made = rewrite(&text, &report.findings, Shape::Text);
            let again = scanner.scan(&made);
            if report.findings.is_empty() || !again.findings.is_empty() {
                writeln!(all, "{name}, {spelling}: {report:?}, then {again:?}").expect("text");
            }
        }
    }
    assert!(all.is_empty(), "of {} keys:\n{all}", keys.len());
    for public in [&["--armor", "--export"][..], &["--export"]] {
        if let Some(key) = made(at, "gpg", public) {
            assert_eq!(scanner.scan(&key).findings, [], "public keys");
        }
    }
}
