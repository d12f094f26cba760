//! `cargo xtask layers`: prints which package of this workspace depends on which. Refuses circles of imports between
//! the files of a package ([`circles`]). Refuses imports between rooms, which are the directories in the program's
//! `src`, against their order ([`rooms`]). Cargo itself refuses circles of packages.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::broken::root;
use crate::{circles, rooms};

/// Prints each package with the packages of this workspace that it depends on.
///
/// # Errors
/// Returns an error if files import each other in a circle, if an import violates the order of the rooms, or if the
/// sources cannot be read.
pub(crate) fn run() -> Result<()> {
    let root = root()?;
    for (package, dependencies) in packages(root)? {
        println!("{package:<24} {}", dependencies.join(" "));
    }
    circles::check(root)?;
    rooms::check(root)
}

/// Returns the packages of the program. Each package has a list of the packages on which it depends outside of its
/// tests.
fn packages(root: &Path) -> Result<BTreeMap<String, Vec<String>>> {
    let mut manifests = vec![root.join("Cargo.toml")];
    for directory in ["crates", "sidecars"] {
        for entry in fs::read_dir(root.join(directory))? {
            manifests.push(entry?.path().join("Cargo.toml"));
        }
    }
    let mut packages = BTreeMap::new();
    for manifest in manifests {
        let text = fs::read_to_string(&manifest).with_context(|| format!("{}", manifest.display()))?;
        let name = text.lines().find_map(|line| line.strip_prefix("name = ")).unwrap_or_default();
        packages.insert(name.trim_matches('"').to_owned(), dependencies(&text));
    }
    Ok(packages)
}

/// Returns the packages of this workspace that a manifest lists as dependencies, without the dependencies of tests.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut applies = false;
    let mut dependencies = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            applies =
                line.ends_with("dependencies]") && !line.contains("dev-") && !line.contains("workspace");
        }
        let name = line.strip_suffix(".workspace = true").filter(|name| name.starts_with("bottle-"));
        dependencies.extend(name.filter(|_| applies).map(str::to_owned));
    }
    dependencies
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The crates that only the host's processes use.
    const HOST: [&str; 11] = [
        "bottle",
        "bottle-archive",
        "bottle-backend",
        "bottle-containers",
        "bottle-host",
        "bottle-instance",
        "bottle-keeper",
        "bottle-lib",
        "bottle-manifest",
        "bottle-plan",
        "bottle-sandbox",
    ];

    #[test]
    fn nothing_that_bottles_or_bundles_run_depends_on_a_crate_of_the_host() {
        let packages = packages(root().expect("root")).expect("packages");
        assert!(HOST.iter().all(|name| packages.contains_key(*name)));
        for (package, dependencies) in packages.iter().filter(|(name, _)| !HOST.contains(&name.as_str())) {
            let host = dependencies.iter().find(|name| HOST.contains(&name.as_str()));
            assert_eq!(host, None, "{package}");
        }
    }

    #[test]
    fn the_dependencies_of_a_package_are_those_of_the_program() {
        let packages = packages(root().expect("root")).expect("packages");
        assert!(packages["bottle-archive"].contains(&"bottle-guest".to_owned()));
        assert!(packages["bottle"].contains(&"bottle-git-gate".to_owned()), "that of Linux");
        assert!(!packages["bottle"].contains(&"bottle-meter".to_owned()), "that of the tests");
    }

    /// The library must not use flags, terminals, colours or exit codes.
    #[test]
    fn no_library_prints_or_reads_flags() {
        let packages = packages(root().expect("root")).expect("packages");
        assert!(!packages["bottle-lib"].contains(&"bottle".to_owned()));
        for entry in fs::read_dir(root().expect("root").join("crates")).expect("crates") {
            let manifest = entry.expect("a crate").path().join("Cargo.toml");
            let text = fs::read_to_string(&manifest).expect("a manifest");
            for face in ["clap", "crossterm", "ratatui", "dialoguer", "maud", "rmcp"] {
                let line = format!("\n{face}.workspace");
                assert!(!text.contains(&line), "{} depends on {face}", manifest.display());
            }
        }
    }
}
