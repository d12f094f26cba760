//! `cargo xtask dist`: builds the statically linked program.
//!
//! The C library is linked statically with the ordinary gnu target, so that no other target has to be
//! installed. The target is passed explicitly: otherwise cargo would apply the flag to build scripts and
//! procedural macros too, and a static procedural macro cannot be loaded.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::elf;

/// The path to which the program is written, relative to the workspace's root.
const OUTPUT: &str = "dist/bottle";

/// The name of an environment variable of the fake backend. A program that contains it is a test build and is
/// not accepted.
const TEST_PART: &[u8] = b"BOTTLE_FAKE_FAIL";

/// Builds the program, checks it, and copies it to its destination.
pub(crate) fn run() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace's root")?;
    let target = target()?;
    let built = build(root, target)?;
    let program = fs::read(&built).with_context(|| format!("read {}", built.display()))?;
    let file = fs::File::open(&built)?;
    let checked = elf::expect_static(&file).and_then(|()| elf::build_id(&file));
    checked.map_err(|why| anyhow!("{} {why}", built.display()))?;
    let has_test_parts = program.windows(TEST_PART.len()).any(|bytes| bytes == TEST_PART);
    ensure!(!has_test_parts, "{} has the parts for tests", built.display());
    let output = root.join(OUTPUT);
    fs::create_dir_all(output.parent().context("the output's folder")?)?;
    // The new program is written next to the old one and then renamed, so that a bottle that runs the old
    // program keeps it.
    let fresh = output.with_extension("new");
    fs::copy(&built, &fresh)?;
    fs::rename(&fresh, &output)?;
    println!("{OUTPUT}: static, {target}, {:.1} MiB", program.len() as f64 / f64::from(1 << 20));
    Ok(())
}

fn target() -> Result<&'static str> {
    match std::env::consts::ARCH {
        _ if std::env::consts::OS != "linux" => {
            bail!("the static program is a Linux one: run this step on Linux")
        }
        "x86_64" => Ok("x86_64-unknown-linux-gnu"),
        "aarch64" => Ok("aarch64-unknown-linux-gnu"),
        other => bail!("no target is known for {other}"),
    }
}

/// Returns the compiler's flags: the program is static, without symbols, and has relative relocations in their compact
/// form, and a build id, by which `bottle` recognizes it. On x86-64, the toolchain's own linker also merges functions with the same code. A panic message has its file
/// and line without symbols, which are a third of the program. The profile in `Cargo.toml` cannot remove them, because
/// cargo ignores its `strip` for a package with an own section.
fn flags() -> String {
    let mut flags = vec![
        "target-feature=+crt-static",
        "strip=symbols",
        "link-arg=-Wl,-z,pack-relative-relocs,--build-id=sha1",
    ];
    if cfg!(target_arch = "x86_64") {
        flags.push("link-arg=-Wl,--icf=all");
    }
    flags.iter().flat_map(|flag| ["-C", flag]).collect::<Vec<_>>().join(" ")
}

fn build(root: &Path, target: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // A separate target folder is used, because other flags in the usual folder would invalidate the
    // developer's build.
    let folder = root.join("target/dist");
    let status = Command::new(cargo)
        .current_dir(root)
        .args([
            "build",
            "--release",
            "--package",
            "bottle",
            "--bin",
            "bottle",
            "--locked",
            "--target",
            target,
        ])
        .arg("--target-dir")
        .arg(&folder)
        .env("RUSTFLAGS", flags())
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .status()
        .context("start cargo")?;
    ensure!(status.success(), "cargo could not build it");
    Ok(folder.join(target).join("release/bottle"))
}
