//! `cargo xtask dist`: builds the static program.
//!
//! The C library is linked in on the ordinary gnu target, so no other target has to be installed. The
//! target is spelled out on purpose: without it cargo would apply the flag to build scripts and
//! procedural macros too, and a static procedural macro cannot be loaded.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::elf;

/// Where the program is written, from the workspace's root.
const OUTPUT: &str = "dist/bottle";

/// A variable of the fake backend, which only test builds have.
const TEST_PART: &[u8] = b"BOTTLE_FAKE_FAIL";

/// Builds, checks and copies.
pub(crate) fn run() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace's root")?;
    let target = target()?;
    let built = build(root, target)?;
    let program = fs::read(&built).with_context(|| format!("read {}", built.display()))?;
    elf::expect_static(&program).map_err(|why| anyhow!("{} {why}", built.display()))?;
    let has_test_parts = program.windows(TEST_PART.len()).any(|bytes| bytes == TEST_PART);
    ensure!(!has_test_parts, "{} has the parts for tests", built.display());
    let output = root.join(OUTPUT);
    fs::create_dir_all(output.parent().context("the output's folder")?)?;
    // Beside and renamed: a bottle that runs the old program keeps it.
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

fn build(root: &Path, target: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // A folder of its own: other flags in the same one would throw the developer's build away.
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
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .status()
        .context("start cargo")?;
    ensure!(status.success(), "cargo could not build it");
    Ok(folder.join(target).join("release/bottle"))
}
