//! `cargo xtask dist`: builds the statically linked program.
//!
//! The C library is linked statically with the ordinary gnu target, so that no other target has to be installed. The
//! target is passed explicitly: otherwise cargo would also apply the flag for static linking to build scripts and
//! procedural macros, and a static procedural macro cannot be loaded.
//!
//! For another processor, or from macOS, the program is built with musl. `scripts/zig-cc` is then the C compiler and
//! the linker, because zig contains the C library of each target and runs on each host. rustup must add the target's
//! standard library.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::elf;

/// The directory to which programs are written, relative to the workspace's root.
const OUTPUT: &str = "dist";

/// The name of an environment variable of the fake backend. A program that contains this name is a test build and is
/// not accepted.
const TEST_PART: &[u8] = b"BOTTLE_FAKE_FAIL";

/// What to build, and for which machine.
struct Build {
    /// Cargo's name of the target.
    target: String,
    /// The name of the target for `scripts/zig-cc`. `None` if the host's own toolchain builds the program.
    zig: Option<String>,
    /// The path of the program, relative to the workspace's root.
    output: String,
}

impl Build {
    /// Returns the build for the processor `wanted`: `x86_64` or `aarch64`, by default the host's processor. `os` and
    /// `host` are the operating system and the processor of the host. The program for the host's processor is
    /// `dist/bottle`. The name of a program for another processor ends with the name that container engines use for
    /// that processor, so that `bottle` finds the program.
    ///
    /// # Errors
    /// Returns an error if no target is known for the processor.
    fn new(wanted: Option<&str>, os: &str, host: &str) -> Result<Self> {
        let wanted = wanted.unwrap_or(host);
        let engines_name = match wanted {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => bail!("no target is known for {other}: use x86_64 or aarch64"),
        };
        let own = wanted == host;
        let output = if own { format!("{OUTPUT}/bottle") } else { format!("{OUTPUT}/bottle-{engines_name}") };
        if own && os == "linux" {
            return Ok(Self { target: format!("{wanted}-unknown-linux-gnu"), zig: None, output });
        }
        let zig = Some(format!("{wanted}-linux-musl"));
        Ok(Self { target: format!("{wanted}-unknown-linux-musl"), zig, output })
    }

    /// Returns the compiler's flags. The program is static, has no symbols, and has a build id, by which `bottle`
    /// recognizes it. On x86-64, the toolchain's own linker also merges functions with the same code. Symbols would be
    /// a third of the program. A panic message contains its file and line even without symbols. The profile in
    /// `Cargo.toml` cannot remove the symbols, because cargo ignores `strip` in the profile for a package that has a
    /// section of its own.
    fn flags(&self) -> String {
        let mut flags = vec!["target-feature=+crt-static", "strip=symbols"];
        if self.zig.is_some() {
            // zig brings the start files and libraries of musl, which would otherwise be linked twice.
            flags.extend(["link-self-contained=no", "link-arg=-Wl,--build-id=sha1"]);
        } else {
            // The program has a fixed address, as Go programs have. With a random address, each process of a bottle
            // would have to change 1.1 MiB of pointers at its start, and would hold its own copy of them. With a fixed
            // address, all processes share these pointers. The stack, the heap and the kernel's libraries still have
            // random addresses.
            flags.extend(["relocation-model=static", "link-arg=-Wl,--build-id=sha1"]);
            if cfg!(target_arch = "x86_64") {
                flags.push("link-arg=-Wl,--icf=all");
            }
        }
        flags.iter().flat_map(|flag| ["-C", flag]).collect::<Vec<_>>().join(" ")
    }

    /// Returns the environment in which cargo uses `scripts/zig-cc`. Installs zig and the target's standard library
    /// first.
    fn environment(&self, root: &Path) -> Result<Vec<(String, OsString)>> {
        let Some(zig) = &self.zig else { return Ok(Vec::new()) };
        let compiler = root.join("scripts/zig-cc");
        let installed = Command::new(&compiler).arg("--install").status().context("start scripts/zig-cc")?;
        ensure!(installed.success(), "cannot install zig");
        let added = Command::new("rustup").args(["target", "add", &self.target]).status();
        ensure!(added.context("start rustup")?.success(), "rustup cannot add {}", self.target);
        let target = self.target.replace('-', "_");
        Ok(vec![
            ("BOTTLE_ZIG_TARGET".into(), zig.into()),
            (format!("CC_{target}"), compiler.clone().into()),
            (format!("CARGO_TARGET_{}_LINKER", target.to_uppercase()), compiler.into()),
        ])
    }
}

/// Builds the program, checks it, and copies it to its destination.
///
/// `processor` selects the machine: `x86_64` or `aarch64`. The default is the processor of this host.
///
/// # Errors
/// Returns an error if the program cannot be built, or if `bottle` would not put this program into a container.
pub(crate) fn run(processor: Option<&str>) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the workspace's root")?;
    let build = Build::new(processor, std::env::consts::OS, std::env::consts::ARCH)?;
    let built = compile(root, &build)?;
    let program = fs::read(&built).with_context(|| format!("read {}", built.display()))?;
    let file = fs::File::open(&built)?;
    let checked = elf::expect_static(&file).and_then(|()| elf::build_id(&file));
    checked.map_err(|why| anyhow!("{} {why}", built.display()))?;
    let has_test_parts = program.windows(TEST_PART.len()).any(|bytes| bytes == TEST_PART);
    ensure!(!has_test_parts, "{} has the parts for tests", built.display());
    let output = root.join(&build.output);
    fs::create_dir_all(output.parent().context("the output's directory")?)?;
    // The new program is written next to the old one and then renamed. A bottle that runs the old program can therefore
    // continue to use it.
    let fresh = output.with_extension("new");
    fs::copy(&built, &fresh)?;
    fs::rename(&fresh, &output)?;
    println!(
        "{}: static, {}, {:.1} MiB",
        build.output,
        build.target,
        program.len() as f64 / f64::from(1 << 20)
    );
    Ok(())
}

fn compile(root: &Path, build: &Build) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // A separate target directory is used, because other flags in the usual directory would invalidate the
    // developer's build.
    let directory = root.join("target/dist");
    let status = Command::new(cargo)
        .current_dir(root)
        .args([
            "rustc",
            "--release",
            "--package",
            "bottle",
            "--bin",
            "bottle",
            "--locked",
            "--target",
            &build.target,
        ])
        .arg("--target-dir")
        .arg(&directory)
        // The optimisation level of this crate is also the level of the final optimisation of the whole program. At
        // this level, the final optimisation vectorizes the loops of all crates. The level in the profile optimises for
        // size and would not do so. Functions of crates that are compiled for size stay small.
        .args(["--", "-C", "opt-level=2"])
        .env("RUSTFLAGS", build.flags())
        .envs(build.environment(root)?)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .status()
        .context("start cargo")?;
    ensure!(status.success(), "cargo could not build it");
    Ok(directory.join(&build.target).join("release/bottle"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_builds_for_both_processors() {
        for (wanted, os, host, target, zig, output) in [
            (None, "linux", "x86_64", "x86_64-unknown-linux-gnu", None, "dist/bottle"),
            (Some("x86_64"), "linux", "x86_64", "x86_64-unknown-linux-gnu", None, "dist/bottle"),
            (
                Some("aarch64"),
                "linux",
                "x86_64",
                "aarch64-unknown-linux-musl",
                Some("aarch64-linux-musl"),
                "dist/bottle-arm64",
            ),
            (
                None,
                "macos",
                "aarch64",
                "aarch64-unknown-linux-musl",
                Some("aarch64-linux-musl"),
                "dist/bottle",
            ),
            (
                Some("x86_64"),
                "macos",
                "aarch64",
                "x86_64-unknown-linux-musl",
                Some("x86_64-linux-musl"),
                "dist/bottle-amd64",
            ),
        ] {
            let build = Build::new(wanted, os, host).expect("a known processor");
            let found = (build.target.as_str(), build.zig.as_deref(), build.output.as_str());
            assert_eq!(found, (target, zig, output), "{wanted:?} on {os} {host}");
            assert_eq!(build.flags().contains("link-self-contained=no"), zig.is_some());
        }
        assert!(Build::new(Some("riscv64"), "linux", "x86_64").is_err());
    }
}
