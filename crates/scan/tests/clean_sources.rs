//! Runs the token patterns on the published sources of twenty popular packages. These sources contain no secrets.
//!
//! `cargo vendor` and `pip download` fetch the packages from the configured registries, so the test runs only
//! on request: `cargo test -p bottle-scan --test clean_sources -- --ignored`. Each finding must be listed in
//! `clean_sources.yaml` with a reason. A token pattern in a test or in documentation is a correct finding.
//! Any other finding is a false positive. A listed finding that no longer occurs must be removed from the
//! list.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a test that prints what it measured")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use bottle_scan::{KnownSecrets, Scanner};
use serde::Deserialize;

/// The packages from the Rust registry.
const CRATES: [(&str, &str); 10] = [
    ("clap", "4.5.20"),
    ("hyper", "1.5.0"),
    ("jsonwebtoken", "9.3.0"),
    ("openssl", "0.10.68"),
    ("regex", "1.11.0"),
    ("reqwest", "0.12.8"),
    ("rustls", "0.23.15"),
    ("serde_json", "1.0.132"),
    ("tokio", "1.41.0"),
    ("url", "2.5.2"),
];

/// The packages from the Python registry.
const WHEELS: [(&str, &str); 10] = [
    ("boto3", "1.35.80"),
    ("django", "5.1.4"),
    ("flask", "3.0.3"),
    ("paramiko", "3.5.0"),
    ("pip", "24.3.1"),
    ("pyjwt", "2.10.1"),
    ("pytest", "8.3.4"),
    ("requests", "2.32.3"),
    ("rich", "13.9.4"),
    ("setuptools", "75.6.0"),
];

/// The maximum rate of false positives: one in this many bytes.
const ONE_IN: u64 = 10 << 20;

/// A finding that is listed in `clean_sources.yaml`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    file: String,
    rule: String,
    is: Is,
    why: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Is {
    Secret,
    Mistake,
}

#[test]
#[ignore = "fetches twenty packages, 15 MB: `.ci/run clean-sources`"]
fn published_packages_have_listed_findings_only() {
    let room = tempfile::tempdir().unwrap();
    fetch_crates(room.path());
    fetch_wheels(room.path());
    let scanner = Scanner::outbound(Arc::new(KnownSecrets::new(&[]).unwrap()));
    let mut all = All::default();
    let directories = fs::read_dir(room.path().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    for directory in directories {
        let name = directory.file_name().unwrap().to_str().unwrap().to_owned();
        if CRATES.iter().any(|(package, version)| name == format!("{package}-{version}")) {
            all.scan_directory(&scanner, &directory, &name);
        }
    }
    all.scan_directory(&scanner, &room.path().join("wheels"), "wheels");
    assert!(all.packages == CRATES.len() + 1, "{} packages were looked at", all.packages);

    let listed: Vec<Known> = serde_yaml::from_str(include_str!("clean_sources.yaml")).unwrap();
    assert!(listed.iter().all(|known| !known.why.is_empty()), "each has its reason");
    let mistaken = |(file, rule): &&(String, String)| {
        listed.iter().any(|known| known.is == Is::Mistake && known.file == *file && known.rule == *rule)
    };
    let mistakes = all.findings.iter().filter(mistaken).count() as u64;
    let most = all.bytes / ONE_IN;
    #[expect(clippy::cast_precision_loss, reason = "a figure to read")]
    let mib = all.bytes as f64 / f64::from(1 << 20);
    println!("{} files, {mib:.1} MiB, {} findings, {mistakes} mistakes", all.files, all.findings.len());
    let listed: BTreeSet<_> = listed.iter().map(|known| (known.file.clone(), known.rule.clone())).collect();
    let found: BTreeSet<_> = all.findings.iter().cloned().collect();
    let (new, missing): (Vec<_>, Vec<_>) =
        (found.difference(&listed).collect(), listed.difference(&found).collect());
    assert!(new.is_empty(), "found, and not listed: {new:#?}");
    assert!(missing.is_empty(), "listed, but not found any more: {missing:#?}");
    assert!(mistakes <= most, "{mistakes} mistakes, {most} would be few");
}

#[derive(Debug, Default)]
struct All {
    packages: usize,
    files: u64,
    bytes: u64,
    findings: Vec<(String, String)>,
}

impl All {
    fn scan_directory(&mut self, scanner: &Scanner, directory: &Path, name: &str) {
        self.packages += 1;
        let mut directories = vec![directory.to_owned()];
        while let Some(inner) = directories.pop() {
            for entry in fs::read_dir(&inner).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    directories.push(path);
                    continue;
                }
                let text = fs::read(&path).unwrap();
                let report = scanner.scan(&text);
                self.files += 1;
                self.bytes += text.len() as u64;
                let file = format!("{name}/{}", path.strip_prefix(directory).unwrap().display());
                for finding in report.findings {
                    let at = usize::try_from(finding.span.start).unwrap();
                    let line = text[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
                    println!("{file}:{line}: {} {}", finding.rule, finding.preview);
                    self.findings.push((file.clone(), finding.rule.to_string()));
                }
            }
        }
    }
}

fn fetch_crates(room: &Path) {
    let project = room.join("project");
    fs::create_dir_all(project.join("src")).unwrap();
    fs::write(project.join("src/lib.rs"), "").unwrap();
    let pins = CRATES.map(|(name, version)| format!("{name} = \"={version}\"\n")).concat();
    let manifest =
        format!("[package]\nname = \"none\"\nedition = \"2024\"\n[workspace]\n[dependencies]\n{pins}");
    fs::write(project.join("Cargo.toml"), manifest).unwrap();
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(&project).args(["vendor", "--quiet", "--versioned-dirs"]).arg(room.join("crates"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "cargo vendor: {}", String::from_utf8_lossy(&output.stderr));
}

fn fetch_wheels(room: &Path) {
    let wheels = room.join("zipped");
    let mut command = Command::new("python3");
    command.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest"]);
    command.arg(&wheels).args(WHEELS.map(|(name, version)| format!("{name}=={version}")));
    let output = command.output().unwrap();
    assert!(output.status.success(), "pip download: {}", String::from_utf8_lossy(&output.stderr));
    let mut unpacked = 0;
    for wheel in fs::read_dir(&wheels).unwrap() {
        let mut command = Command::new("python3");
        command.args(["-m", "zipfile", "-e"]).arg(wheel.unwrap().path()).arg(room.join("wheels"));
        assert!(command.status().unwrap().success(), "unpacked");
        unpacked += 1;
    }
    assert_eq!(unpacked, WHEELS.len(), "wheels");
}
