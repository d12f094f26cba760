//! The names of directories that tools fill with files that the tools can make or fetch again.
//!
//! A name alone does not show that a directory has build output: users also give names such as `build` or `out` to
//! their own directories. A directory is treated as build output only if an ignore rule of the user matches it too
//! ([`crate::unsaved`]).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// The names, each with the tools that use such a directory. A name may begin or end with `*`.
const NAMES: &[(&str, &str)] = &[
    // Output of compilers and bundlers
    ("target", "Cargo, Maven and sbt"),
    ("build", "Gradle, CMake, setuptools, Flutter and many scripts"),
    ("dist", "bundlers of JavaScript, wheels of Python"),
    ("out", "Next.js, IntelliJ IDEA, TypeScript"),
    ("obj", "object files of .NET"),
    ("bin", "programs that Go, .NET and CMake build"),
    ("_build", "mix, dune and Sphinx"),
    ("cmake-build-*", "CMake in CLion"),
    ("CMakeFiles", "CMake"),
    ("dist-newstyle", "Cabal"),
    (".stack-work", "Stack"),
    ("zig-out", "Zig"),
    ("zig-cache", "Zig"),
    (".zig-cache", "Zig"),
    (".next", "Next.js"),
    (".nuxt", "Nuxt"),
    (".output", "Nitro"),
    (".svelte-kit", "SvelteKit"),
    (".angular", "Angular"),
    (".astro", "Astro"),
    (".expo", "Expo"),
    (".dart_tool", "Dart"),
    ("elm-stuff", "Elm"),
    ("DerivedData", "Xcode"),
    (".build", "Swift packages"),
    (".bloop", "Bloop"),
    (".metals", "Metals"),
    // Installed packages
    ("node_modules", "npm, pnpm and yarn"),
    ("bower_components", "Bower"),
    (".venv", "environments of Python"),
    ("venv", "environments of Python"),
    (".direnv", "environments of direnv"),
    ("vendor", "Composer, Bundler and Go, if it is ignored"),
    ("Pods", "CocoaPods"),
    (".terraform", "providers of Terraform"),
    (".eggs", "setuptools"),
    ("*.egg-info", "setuptools"),
    // Caches of tools
    ("__pycache__", "bytecode of Python"),
    (".pytest_cache", "pytest"),
    (".mypy_cache", "mypy"),
    (".ruff_cache", "Ruff"),
    (".hypothesis", "Hypothesis"),
    (".tox", "tox"),
    (".nox", "nox"),
    (".ipynb_checkpoints", "Jupyter"),
    (".gradle", "Gradle"),
    (".turbo", "Turborepo"),
    (".parcel-cache", "Parcel"),
    (".vite", "Vite"),
    (".nx", "Nx"),
    (".cache", "many tools"),
    (".ccls-cache", "ccls"),
    (".clangd", "clangd"),
    // Reports of tests
    ("coverage", "coverage of JavaScript"),
    (".nyc_output", "nyc"),
    ("htmlcov", "coverage of Python"),
];

/// Whether tools fill directories of this name with files that the tools can make or fetch again.
#[must_use]
pub fn is_build_directory(name: &OsStr) -> bool {
    let name = name.as_bytes();
    let matches = |pattern: &str| match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(end), _) => name.ends_with(end.as_bytes()),
        (_, Some(start)) => name.starts_with(start.as_bytes()),
        (None, None) => name == pattern.as_bytes(),
    };
    NAMES.iter().any(|(pattern, _)| matches(pattern))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_directories_of_tools() {
        for (name, known) in [
            ("target", true),
            ("node_modules", true),
            ("cmake-build-debug", true),
            ("thing.egg-info", true),
            ("targets", false),
            ("Target", false),
            ("src", false),
            ("data", false),
            ("", false),
        ] {
            assert_eq!(is_build_directory(OsStr::new(name)), known, "{name}");
        }
    }

    #[test]
    fn each_name_has_a_reason_and_stands_once() {
        let mut names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        assert!(NAMES.iter().all(|(name, reason)| !reason.is_empty() && name.trim_matches('*').len() > 1));
    }
}
