//! Proves that a git command only reads. The variables in [`crate::READ_ONLY_ENVIRONMENT`] prevent a repository from
//! making git run programs.

use super::options::check_options;
use crate::call::Call;
use crate::rules::git::subcommand;

/// The options that choose and print commits and differences, and neither write nor run anything.
const FLAGS: &str = "0acDdEFghiIkLlmMnopPqrRsStTuUvVwxyzBC";
const VALUED: &str = "GSnLUeA";
const LONG: &[&str] = &[
    "abbrev",
    "abbrev-commit",
    "abbrev-ref",
    "absolute-git-dir",
    "after=",
    "ahead-behind",
    "all",
    "all-match",
    "always",
    "ancestry-path",
    "author=",
    "author-date-order",
    "batch",
    "batch-check",
    "before=",
    "bisect-all",
    "boundary",
    "branch",
    "branches",
    "cached",
    "candidates=",
    "cherry",
    "cherry-mark",
    "cherry-pick",
    "children",
    "color",
    "column",
    "columns",
    "combined-all-paths",
    "committer=",
    "compact-summary",
    "contains",
    "count",
    "cumulative",
    "date=",
    "date-order",
    "decorate",
    "deleted",
    "dense",
    "diff-algorithm=",
    "diff-filter=",
    "diff-merges=",
    "directory",
    "dirstat",
    "dirty",
    "eol",
    "error-unmatch",
    "exact-match",
    "exclude=",
    "exclude-standard",
    "exit-code",
    "expand-tabs",
    "extended-regexp",
    "files-with-matches",
    "files-without-match",
    "find-copies",
    "find-copies-harder",
    "find-object=",
    "find-renames",
    "first-parent",
    "fixed-strings",
    "follow",
    "format=",
    "full-history",
    "full-index",
    "full-name",
    "function-context",
    "git-common-dir",
    "git-dir",
    "git-path",
    "glob=",
    "graph",
    "grep=",
    "grep-reflog=",
    "heading",
    "histogram",
    "history",
    "human-readable",
    "ignore-all-space",
    "ignore-blank-lines",
    "ignore-case",
    "ignore-cr-at-eol",
    "ignore-matching-lines=",
    "ignore-missing",
    "ignore-space-at-eol",
    "ignore-space-change",
    "ignore-submodules",
    "ignored",
    "incremental",
    "independent",
    "inter-hunk-context=",
    "invert-grep",
    "invert-match",
    "is-ancestor",
    "is-bare-repository",
    "is-inside-git-dir",
    "is-inside-work-tree",
    "is-shallow-repository",
    "killed",
    "left-only",
    "left-right",
    "line-number",
    "line-porcelain",
    "list",
    "local",
    "long",
    "max-age=",
    "max-count=",
    "max-depth=",
    "max-parents=",
    "merge-base",
    "merged",
    "merges",
    "min-age=",
    "min-parents=",
    "minimal",
    "modified",
    "name-only",
    "name-status",
    "no-abbrev",
    "no-abbrev-commit",
    "no-color",
    "no-contains",
    "no-decorate",
    "no-ext-diff",
    "no-heading",
    "no-indent-heuristic",
    "no-index",
    "no-merged",
    "no-merges",
    "no-notes",
    "no-patch",
    "no-prefix",
    "no-renames",
    "no-textconv",
    "no-walk",
    "not",
    "null",
    "numbered",
    "numstat",
    "objects",
    "octopus",
    "oneline",
    "only-matching",
    "others",
    "parents",
    "patch",
    "patch-with-stat",
    "patience",
    "perl-regexp",
    "pickaxe-all",
    "pickaxe-regex",
    "points-at",
    "porcelain",
    "porcelain=",
    "pretty",
    "pretty=",
    "quiet",
    "raw",
    "recurse-submodules",
    "refs",
    "regexp-ignore-case",
    "relative",
    "relative-date",
    "remotes",
    "remove-empty",
    "reverse",
    "right-only",
    "root",
    "shortstat",
    "show-current",
    "show-prefix",
    "show-stash",
    "show-toplevel",
    "show-cdup",
    "short",
    "simplify-by-decoration",
    "simplify-merges",
    "since=",
    "skip=",
    "sort=",
    "source",
    "sparse",
    "stage",
    "staged",
    "stat",
    "submodule",
    "summary",
    "symbolic-full-name",
    "tags",
    "text",
    "topo-order",
    "tree-filter",
    "unified=",
    "unmerged",
    "until=",
    "untracked-files",
    "verbose",
    "verify",
    "version",
    "word-diff",
    "word-diff-regex=",
    "word-regexp",
    "is-local",
];

/// Subcommands that only read if all their options are in [`FLAGS`], [`VALUED`] or [`LONG`], whatever their operands
/// are.
const READERS: &[&str] = &[
    "annotate",
    "blame",
    "cat-file",
    "check-attr",
    "check-ignore",
    "cherry",
    "count-objects",
    "describe",
    "diff",
    "diff-files",
    "diff-index",
    "diff-tree",
    "for-each-ref",
    "grep",
    "log",
    "ls-files",
    "ls-tree",
    "merge-base",
    "name-rev",
    "range-diff",
    "rev-list",
    "rev-parse",
    "shortlog",
    "show",
    "show-branch",
    "show-ref",
    "status",
    "var",
    "version",
    "whatchanged",
];

/// The options of `git config` that choose and print values.
const CONFIG: &[&str] = &[
    "--bool",
    "--global",
    "--int",
    "--local",
    "--name-only",
    "--null",
    "--path",
    "--show-origin",
    "--show-scope",
    "--system",
    "--worktree",
    "-z",
];

pub(super) fn prove(call: &Call<'_>) -> Result<(), String> {
    if let [only] = call.arguments()
        && matches!(only.value.as_str(), "--version" | "-v" | "--help" | "-h" | "help" | "version")
    {
        return Ok(());
    }
    check_global(call)?;
    // The placeholders of signatures run the program that the repository names.
    if call.arguments().iter().any(|word| word.value.contains("%G") || word.value.contains("%(signature")) {
        return Err("makes git check signatures, which runs a program".to_owned());
    }
    let words = subcommand(call);
    let Some((name, rest)) = words.split_first() else {
        return Err("runs git without a subcommand".to_owned());
    };
    let operands = rest.iter().filter(|word| !word.value.starts_with('-')).count();
    let has = |flags: &[&str]| rest.iter().any(|word| flags.contains(&word.value.as_str()));
    let first = rest.first().map_or("", |word| word.value.as_str());
    let is_reading = match name.value.as_str() {
        // `-O` opens a pager. `-o` and `--output` write files.
        name if READERS.contains(&name) => {
            !(name == "grep" && rest.iter().any(|word| word.value.starts_with("-O")))
        }
        "branch" => {
            operands == 0 && !has(&["-d", "-D", "-m", "-M", "-c", "-C", "-u", "--edit-description"])
                || first == "--list"
        }
        "tag" => operands == 0 && !has(&["-d", "-a", "-s", "-f"]) || matches!(first, "-l" | "--list"),
        "remote" => {
            operands == 0 || matches!(first, "get-url" | "show") && has(&["-n"]) || first == "get-url"
        }
        "stash" => matches!(first, "list" | "show"),
        "worktree" => first == "list",
        "reflog" => operands == 0 || first == "show",
        "config" if rest.len() == 1 && first.contains('.') && operands == 1 => true,
        "config" => {
            matches!(first, "--get" | "--get-all" | "--list" | "-l" | "--get-regexp")
                && rest[1..]
                    .iter()
                    .all(|word| !word.value.starts_with('-') || CONFIG.contains(&word.value.as_str()))
        }
        "submodule" => first == "status",
        "notes" => matches!(first, "list" | "show"),
        _ => false,
    };
    if !is_reading {
        return Err(format!("runs git {}, which may write", name.value));
    }
    if name.value == "config" {
        return Ok(());
    }
    let long: Vec<&str> = LONG.to_vec();
    check_options("git", rest, FLAGS, VALUED, &long, false).map(|_| ())
}

/// Whether a command lists paths below the directory in which it runs, one a line.
pub(super) fn lists(call: &Call<'_>) -> bool {
    let Some((name, rest)) = call.arguments().split_first() else { return false };
    let is_path = |word: &&str| !word.starts_with(['-', '/', '~', ':']) && !word.contains("..");
    let words: Vec<&str> = rest.iter().map(|word| word.value.as_str()).collect();
    let options: &[&str] = match name.value.as_str() {
        "ls-files" => {
            &["-c", "-m", "-o", "-z", "--", "--cached", "--exclude-standard", "--modified", "--others"]
        }
        "diff" if words.contains(&"--name-only") => &["--", "--cached", "--name-only", "--staged"],
        "grep" if words.contains(&"-l") => &["-i", "-l", "-w", "-E", "-F"],
        _ => return false,
    };
    words.iter().all(|word| options.contains(word) || is_path(word))
}

/// Checks the options before the subcommand.
fn check_global(call: &Call<'_>) -> Result<(), String> {
    let words = call.arguments();
    let mut index = 0;
    while let Some(word) = words.get(index) {
        match word.value.as_str() {
            "-C" => index += 2,
            "-P" | "--no-pager" | "--no-optional-locks" | "--literal-pathspecs" | "--version" | "-v" => {
                index += 1
            }
            value if value.starts_with('-') => {
                return Err(format!("gives git the option {value}, which may run a program"));
            }
            _ => break,
        }
    }
    Ok(())
}
