//! Finds the package of a Node script.

use std::path::{Component, Path, PathBuf};

/// Returns the directory that contains the package of a script and the package's dependencies.
///
/// In a global installation, a package contains its dependencies, so this function returns the package's directory. In
/// any other installation, the dependencies are beside the package in the outermost `node_modules`, so this function
/// returns the outermost `node_modules`.
pub(super) fn unit(script: &Path) -> Option<PathBuf> {
    let modules = outermost_modules(script)?;
    if modules.parent().is_none_or(|parent| !parent.ends_with("lib")) {
        return Some(modules);
    }
    let mut names = script.strip_prefix(&modules).ok()?.components();
    let first = names.next()?;
    let package = modules.join(first);
    let scoped = matches!(first, Component::Normal(name) if name.as_encoded_bytes().starts_with(b"@"));
    Some(if scoped { package.join(names.next()?) } else { package })
}

fn outermost_modules(script: &Path) -> Option<PathBuf> {
    let directories: Vec<&Path> = script.ancestors().skip(1).collect();
    directories.into_iter().rev().find(|directory| directory.ends_with("node_modules")).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_package_with_its_dependencies() {
        for (script, expected) in [
            ("/n/lib/node_modules/pi/dist/cli.js", Some("/n/lib/node_modules/pi")),
            ("/n/lib/node_modules/@s/pi/dist/cli.js", Some("/n/lib/node_modules/@s/pi")),
            ("/n/lib/node_modules/@s/pi/node_modules/x/cli.js", Some("/n/lib/node_modules/@s/pi")),
            ("/p/node_modules/@s/pi/dist/cli.js", Some("/p/node_modules")),
            ("/p/node_modules/.pnpm/pi@1/node_modules/pi/cli.js", Some("/p/node_modules")),
            ("/p/bin/pi", None),
        ] {
            assert_eq!(unit(Path::new(script)).as_deref(), expected.map(Path::new), "{script}");
        }
    }
}
