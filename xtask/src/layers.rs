//! `cargo xtask layers`: prints the order of the top-level modules of the package `bottle`, and the imports
//! that violate it. Also refuses circles of imports between the files of a package ([`circles`]).
//!
//! A module imports only from modules that come earlier in [`LAYERS`], so that data flows in one direction
//! and no two modules depend on each other. Test code may import from any module.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::broken::root;
use crate::{circles, sources};

/// The top-level modules of `src`. Each one may import only from those before it.
const LAYERS: [&str; 18] = [
    "causes", "archive", "host", "manifest", "provider", "resolve", "forge", "plan", "secrets", "backend",
    "instance", "portable", "learn", "ledger", "launch", "keeper", "library", "cli",
];

/// Imports as pairs of a file and a module of this crate that the file names.
type Imports = Vec<(String, String)>;

/// Prints each module with the modules that it imports from.
///
/// # Errors
/// Returns an error if a module imports from a later one, if files import each other in a circle, or if the sources
/// cannot be read.
pub(crate) fn run() -> Result<()> {
    let imports = imports(root()?)?;
    let mut graph: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for (file, module) in &imports {
        let modules = graph.entry(layer(module_of(file))?).or_default();
        if !modules.contains(&module.as_str()) {
            modules.push(module);
        }
    }
    for (layer, modules) in graph {
        println!("{:<10} {}", LAYERS[layer], modules.join(" "));
    }
    let upward = upward(&imports)?;
    ensure!(upward.is_empty(), "imports against the order:\n{}", upward.join("\n"));
    circles::check(root()?)
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
    fn modules_import_from_modules_above_them() {
        let imports = imports(root().expect("root")).expect("imports");
        assert!(imports.len() > 200, "{}", imports.len());
        assert_eq!(upward(&imports).expect("known modules"), [""; 0]);
    }

    #[test]
    fn an_import_against_the_order_is_found_in_every_spelling() {
        for text in [
            "use crate::cli::Tone;",
            "use crate::{host, cli};",
            "fn f() { crate::cli::run() }",
            "use crate::{\n    cli::Tone,\n    host,\n};\n",
        ] {
            let found = modules(text).into_iter().map(|module| ("host/mod.rs".to_owned(), module)).collect();
            let found = upward(&found).expect("known modules");
            assert_eq!(found, ["src/host/mod.rs imports cli"], "{text}");
        }
        assert_eq!(modules("use std::fs;\n"), [""; 0]);
        assert!(upward(&vec![("host/mod.rs".to_owned(), "new".to_owned())]).is_err());
    }
}
