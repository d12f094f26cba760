//! `cargo xtask layers`: prints which package of this workspace depends on which. In the package `bottle`, refuses imports
//! from a later module of [`LAYERS`]. Also refuses circles of imports between the files of a package ([`circles`]).
//!
//! Cargo refuses circles of packages. Test code may import from any module.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::broken::root;
use crate::{circles, sources};

/// The top-level modules of `src`. Each one may import only from those before it.
const LAYERS: [&str; 2] = ["library", "cli"];

/// Imports as pairs of a file and a module of this crate that the file names.
type Imports = Vec<(String, String)>;

/// Prints each package with the packages of this workspace that it depends on.
///
/// # Errors
/// Returns an error if a module imports from a later one, if files import each other in a circle, or if the sources
/// cannot be read.
pub(crate) fn run() -> Result<()> {
    let root = root()?;
    for (package, dependencies) in packages(root)? {
        println!("{package:<24} {}", dependencies.join(" "));
    }
    let upward = upward(&imports(root)?)?;
    ensure!(upward.is_empty(), "imports against the order:\n{}", upward.join("\n"));
    circles::check(root)
}

/// Returns the packages of the program, each with those that it depends on outside its tests.
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

/// Returns the packages of this workspace that a manifest lists as dependencies, without those of tests.
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

/// Returns the top-level module that a file belongs to.
fn module_of(file: &str) -> &str {
    file.split('/').next().unwrap_or_default().trim_end_matches(".rs")
}

fn layer(module: &str) -> Result<usize> {
    let found = LAYERS.iter().position(|layer| *layer == module);
    found.with_context(|| format!("`{module}` has no place in LAYERS of xtask/src/layers.rs"))
}

/// Returns the imports from a later module, as `FILE imports MODULE`.
fn upward(imports: &Imports) -> Result<Vec<String>> {
    let mut upward = Vec::new();
    for (file, module) in imports {
        if layer(module)? > layer(module_of(file))? {
            upward.push(format!("src/{file} imports {module}"));
        }
    }
    Ok(upward)
}

/// Returns the imports of every file of `src`, except those of tests.
fn imports(root: &Path) -> Result<Imports> {
    let mut imports = Vec::new();
    for (file, code) in sources::program(root)? {
        let Ok(file) = file.strip_prefix("src") else { continue };
        let file = file.to_string_lossy().into_owned();
        if file == "main.rs" || file == "lib.rs" {
            continue;
        }
        let modules = modules(&code).into_iter().filter(|module| module != module_of(&file));
        imports.extend(modules.map(|module| (file.clone(), module)));
    }
    imports.sort();
    imports.dedup();
    Ok(imports)
}

/// Returns the modules that follow `crate::` in this code.
fn modules(code: &str) -> Vec<String> {
    let name =
        |rest: &str| rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect::<String>();
    let mut modules = Vec::new();
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{').and_then(|list| list.split(';').next()) {
            Some(list) => modules.extend(list.split(',').map(|item| name(item.trim_start()))),
            None => modules.push(name(rest)),
        }
    }
    modules.retain(|module| !module.is_empty());
    modules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dependencies_of_a_package_are_those_of_the_program() {
        let packages = packages(root().expect("root")).expect("packages");
        assert!(packages["bottle-archive"].contains(&"bottle-guest".to_owned()));
        assert!(packages["bottle"].contains(&"bottle-git-gate".to_owned()), "that of Linux");
        assert!(!packages["bottle"].contains(&"bottle-meter".to_owned()), "that of the tests");
    }

    #[test]
    fn modules_import_from_modules_above_them() {
        let imports = imports(root().expect("root")).expect("imports");
        assert!(imports.len() > 50, "{}", imports.len());
        assert_eq!(upward(&imports).expect("known modules"), [""; 0]);
    }

    #[test]
    fn an_import_against_the_order_is_found_in_every_spelling() {
        for text in [
            "use crate::cli::Tone;",
            "use crate::{library, cli};",
            "fn f() { crate::cli::run() }",
            "use crate::{\n    cli::Tone,\n    library,\n};\n",
        ] {
            let found =
                modules(text).into_iter().map(|module| ("library/mod.rs".to_owned(), module)).collect();
            let found = upward(&found).expect("known modules");
            assert_eq!(found, ["src/library/mod.rs imports cli"], "{text}");
        }
        assert_eq!(modules("use std::fs;\n"), [""; 0]);
        assert!(upward(&vec![("library/mod.rs".to_owned(), "new".to_owned())]).is_err());
    }
}
