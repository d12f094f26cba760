//! Names files that programs on the host run or obey without asking the user, such as hooks. If an agent changes such a
//! file, the change has an effect outside of the bottle as soon as the file is in the user's directory.
//!
//! The table lists files that take effect by themselves: when a user enters their directory, when an editor or an agent
//! opens this directory, or when an unrelated program runs in it. Files that a build runs, such as a `Makefile`, are
//! the agent's ordinary work.

use std::path::Path;

/// Lower-case names of files and directories, which may be anywhere in a path, grouped by the program that uses them. A
/// `*` at the end or the beginning of a name matches any text.
const TOOLS: &[(&str, &[&str])] = &[
    ("direnv runs it", &[".envrc", ".direnv"]),
    ("a shell may run it", &[".autoenv", ".autoenv.zsh"]),
    ("programs take their environment from it", &[".env"]),
    (
        "a version manager installs and runs programs by it",
        &[".mise*", "mise.toml", "mise.*.toml", "devbox.json"],
    ),
    ("a version manager obeys it", VERSIONS),
    (
        "an editor may run its tasks",
        &[".vscode", ".idea", ".zed", ".fleet", ".vs", ".nova", "*.code-workspace"],
    ),
    ("an editor may run it", EDITORS),
    (
        "a language server may run programs by it",
        &[".clangd", ".luarc.json", ".bsp", "hie.yaml", ".solargraph.yml"],
    ),
    ("git runs it as a hook", &[".husky"]),
    ("git may run it as a hook", HOOKS),
    ("git may run filters by it", &[".gitattributes"]),
    ("git fetches by it", &[".gitmodules"]),
    ("git-lfs sends files where it says", &[".lfsconfig"]),
    ("npm obeys it", &[".npmrc"]),
    ("yarn obeys it", &[".yarnrc"]),
    ("yarn may run programs by it", &[".yarnrc.yml", ".yarn"]),
    ("pnpm runs it", &[".pnpmfile.cjs", "pnpmfile.js"]),
    ("node may load it before each program", &[".pnp.cjs", ".pnp.loader.mjs"]),
    ("bun may run programs by it", &["bunfig.toml"]),
    ("a linter runs it, also in an editor", LINTERS),
    ("a test runner runs it, also in an editor", TESTS),
    ("cargo may run programs by it", &[".cargo"]),
    ("cargo runs it, also in an editor", &["build.rs"]),
    ("rustup may install and run another compiler by it", &["rust-toolchain", "rust-toolchain.toml"]),
    ("gradle starts programs by it", &["gradle.properties", "gradle-wrapper.*", "init.gradle*"]),
    ("an editor runs it when it opens the project", &["build.gradle*", "settings.gradle*"]),
    ("maven loads extensions by it", &[".mvn"]),
    ("sbt starts java by it", &[".jvmopts", ".sbtopts"]),
    ("bazel obeys it", &[".bazelrc"]),
    ("bazelisk may download another bazel by it", &[".bazelversion", ".bazeliskrc"]),
    ("python may run it", &["sitecustomize.py", "usercustomize.py", "*.pth"]),
    ("an interpreter runs it at its start", INTERPRETERS),
    ("a debugger may run it", &[".gdbinit", ".lldbinit", ".pdbrc"]),
    ("bundler obeys it", &[".bundle"]),
    ("docker compose obeys it by itself", &["docker-compose.override.*", "compose.override.*"]),
    ("ansible may run programs by it", &["ansible.cfg"]),
    ("a web server obeys it", &[".htaccess", ".user.ini"]),
    ("bottle reads agents from it", &[".bottle"]),
    ("agents on this machine obey it", AGENTS),
    ("agents on this machine start programs by it", &[".mcp.json"]),
    ("your forge may run it", FORGES),
];

const VERSIONS: &[&str] = &[
    ".tool-versions",
    ".nvmrc",
    ".node-version",
    ".python-version",
    ".ruby-version",
    ".java-version",
    ".sdkmanrc",
];

const EDITORS: &[&str] = &[
    ".vim",
    ".vimrc",
    ".gvimrc",
    ".nvimrc",
    ".nvim.lua",
    ".lvimrc",
    ".exrc",
    ".ycm_extra_conf.py",
    ".dir-locals.el",
    ".dir-locals-2.el",
    ".helix",
    ".devcontainer",
    ".devcontainer.json",
];

const HOOKS: &[&str] = &[
    ".githooks",
    ".git-hooks",
    ".pre-commit-config.*",
    ".overcommit.yml",
    "lefthook*",
    ".lefthook*",
    ".lintstagedrc*",
];

const LINTERS: &[&str] = &[
    ".eslintrc*",
    "eslint.config.*",
    ".prettierrc*",
    "prettier.config.*",
    ".stylelintrc*",
    "stylelint.config.*",
    "tailwind.config.*",
    "postcss.config.*",
    ".babelrc*",
    "babel.config.*",
    ".rubocop.yml",
    ".luacheckrc",
    ".php-cs-fixer*",
    "phpstan.neon*",
    ".formatter.exs",
    ".credo.exs",
    ".golangci.*",
];

const TESTS: &[&str] = &[
    "conftest.py",
    "pytest.ini",
    "jest.config.*",
    "vitest.config.*",
    "vite.config.*",
    "playwright.config.*",
    ".mocharc*",
    ".rspec",
];

const INTERPRETERS: &[&str] =
    &[".irbrc", ".pryrc", ".ghci", ".ocamlinit", ".iex.exs", ".rprofile", ".renviron", ".psysh.php"];

const AGENTS: &[&str] = &[
    "agents.md",
    "agents.override.md",
    "claude.md",
    "claude.local.md",
    "gemini.md",
    ".agents",
    ".claude",
    ".codex",
    ".gemini",
    ".pi",
    ".cursor",
    ".cursorrules",
    ".windsurf",
    ".windsurfrules",
    ".clinerules",
    ".roo",
    ".roomodes",
    ".continue",
    ".aider*",
    ".opencode",
    "opencode.json*",
    ".kiro",
    ".amazonq",
    ".junie",
    ".goosehints",
    ".crush.json",
];

const FORGES: &[&str] = &[
    ".github",
    ".gitlab",
    ".gitlab-ci.yml",
    ".circleci",
    ".travis.yml",
    ".drone.yml",
    ".woodpecker*",
    ".buildkite",
    ".forgejo",
    ".gitea",
    ".cirrus.yml",
    ".appveyor.yml",
    "appveyor.yml",
    "azure-pipelines.yml",
    "bitbucket-pipelines.yml",
    "jenkinsfile",
];

/// Returns the program that uses this file without asking the user, and how. `None` for other files.
fn used_by(path: &Path) -> Option<&'static str> {
    path.components().find_map(|component| {
        let name = component.as_os_str().to_string_lossy().to_lowercase();
        let known = |names: &[&str]| names.iter().any(|pattern| matches(pattern, &name));
        TOOLS.iter().find(|(_, names)| known(names)).map(|(used_by, _)| *used_by)
    })
}

/// Whether a name has the form of a pattern, which contains at most one `*`.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, after)) => name.strip_prefix(before).is_some_and(|rest| rest.ends_with(after)),
    }
}

/// Returns the paths that programs on the host run or obey without asking the user, each with the reason.
pub fn tool_files<'a>(
    paths: impl IntoIterator<Item = &'a Path>,
) -> impl Iterator<Item = (&'a Path, &'static str)> {
    paths.into_iter().filter_map(|path| Some((path, used_by(path)?)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_files_by_any_component() {
        let used = [
            ".envrc",
            "a/.VSCode/tasks.json",
            ".github/workflows/ci.yml",
            "rust-toolchain.toml",
            ".gemini/settings.json",
            "sub/AGENTS.md",
            "CLAUDE.md",
            ".eslintrc.cjs",
            ".eslintrc",
            ".bazelrc",
            ".vimrc",
            "tests/conftest.py",
            "gradle.properties",
            "gradle/wrapper/gradle-wrapper.properties",
            "my.code-workspace",
            "mise.local.toml",
        ];
        let others =
            ["src/main.rs", "envrc", "Makefile", "eslintrc.js", "agents.mdx", "pth", "docs/claude.md.txt"];
        let found: Vec<_> =
            tool_files(used.iter().chain(&others).map(Path::new)).map(|(path, _)| path).collect();
        assert_eq!(found, used.map(Path::new));
    }

    #[test]
    fn each_name_is_in_the_table_once_and_can_match() {
        let mut seen = HashSet::new();
        for (used_by, names) in TOOLS {
            assert!(!used_by.is_empty() && !names.is_empty());
            for name in *names {
                assert!(seen.insert(name), "{name} is there twice");
                assert_eq!(name.to_lowercase(), **name, "names are compared in lower case");
                assert!(name.matches('*').count() <= 1 && *name != "*" && !name.contains('/'), "{name}");
            }
        }
    }
}
