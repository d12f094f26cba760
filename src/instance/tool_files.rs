//! Names files that programs on the host run or obey without a question, such as hooks. A change of such a file by
//! an agent has an effect outside the bottle as soon as it is in the user's directory.

use std::path::Path;

/// Names of files and folders, in lower case, anywhere in a path, and what uses them.
const NAMES: [(&str, &str); 33] = [
    (".envrc", "direnv runs it"),
    (".vscode", "an editor may run its tasks"),
    (".idea", "an editor may run its tasks"),
    (".zed", "an editor may run its tasks"),
    (".nvim.lua", "an editor may run it"),
    (".exrc", "an editor may run it"),
    (".dir-locals.el", "an editor may run it"),
    (".devcontainer", "an editor may run it"),
    (".husky", "git runs it as a hook"),
    (".githooks", "git may run it as a hook"),
    (".git-hooks", "git may run it as a hook"),
    (".pre-commit-config.yaml", "git may run it as a hook"),
    ("lefthook.yml", "git may run it as a hook"),
    (".gitattributes", "git may run filters by it"),
    (".gitmodules", "git fetches by it"),
    (".npmrc", "npm obeys it"),
    (".yarnrc", "yarn obeys it"),
    (".yarnrc.yml", "yarn may run programs by it"),
    (".pnpmfile.cjs", "pnpm runs it"),
    (".cargo", "cargo may run programs by it"),
    ("build.rs", "cargo runs it, also in an editor"),
    (".tool-versions", "asdf obeys it"),
    (".mise.toml", "mise may run programs by it"),
    ("mise.toml", "mise may run programs by it"),
    ("sitecustomize.py", "python may run it"),
    (".bottle", "bottle reads agents from it"),
    (".claude", "agents on this machine obey it"),
    (".codex", "agents on this machine obey it"),
    (".cursor", "agents on this machine obey it"),
    (".mcp.json", "agents on this machine start programs by it"),
    (".github", "your forge may run it"),
    (".gitlab-ci.yml", "your forge may run it"),
    (".circleci", "your forge may run it"),
];

/// Returns what uses this file by itself; none for other files.
fn used_by(path: &Path) -> Option<&'static str> {
    path.components().find_map(|component| {
        let name = component.as_os_str().to_string_lossy().to_lowercase();
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, used_by)| *used_by)
    })
}

/// Returns those of the paths that programs on the host run or obey by themselves, each with the reason.
pub fn tool_files<'a>(
    paths: impl IntoIterator<Item = &'a Path>,
) -> impl Iterator<Item = (&'a Path, &'static str)> {
    paths.into_iter().filter_map(|path| Some((path, used_by(path)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_files_by_any_component() {
        let paths = [".envrc", "a/.VSCode/tasks.json", "src/main.rs", "envrc", ".github/workflows/ci.yml"];
        let found: Vec<_> = tool_files(paths.map(Path::new)).map(|(path, _)| path).collect();
        assert_eq!(found, [".envrc", "a/.VSCode/tasks.json", ".github/workflows/ci.yml"].map(Path::new));
    }
}
