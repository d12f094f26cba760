//! Runs the commands that take an agent's work out of a bottle, and compares each result with plain git.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use bottle_test_support::home::TestHome;
use bottle_test_support::program::Outcome;

use crate::place::Side;
use crate::shapes::Shape;
use crate::tree::{Tree, lines_differ};

/// The changes that every agent makes: it changes a file, makes a file executable, adds a file and a link, deletes a
/// file, and renames a file. In a bottle, the agent also builds a file that the repository ignores.
const EDITS: &str = r#"
echo two >>code; chmod +x tool; echo added >added; ln -s code link; rm gone; mv old renamed
echo two >>sub/deep/file; mkdir -p new/inner; echo new >new/inner/file
if [ -n "$BUILDS" ]; then mkdir -p target; echo built >target/built; fi
"#;

/// One more change, which the agent makes after the first changes were applied.
const LATER: &str = "echo later >>code; echo later >later";

/// Lists the files of a directory with their permissions, content or targets.
pub(crate) const LIST: &str = r"
find . -name .git -prune -o -type f -printf 'f %m %s %p\0' -o -type l -printf 'l %l %p\0'
find . -name .git -prune -o -type f -size -16777216c -exec sha256sum -z {} +
";

/// The state of a repository: its `HEAD`, and the changes that git sees.
const STATE: &str = r"
git rev-parse -q --verify HEAD || echo unborn; git symbolic-ref -q HEAD || echo detached
git status --porcelain=v1 --untracked-files=all
";

/// Whether the bottle gets a copy of the directory, or the directory itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Copy,
    Live,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Live => "live",
        }
    }
}

/// A command of the user. Its effect is compared with plain git.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cell {
    Start,
    Diff,
    Pull,
    PullUncommitted,
    Apply,
    Resume,
    CommitAndPull,
}

/// A shape, how the shape gets into a bottle, and the backend of the bottle.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) shape: &'static Shape,
    pub(crate) mode: Mode,
    pub(crate) backend: &'static str,
}

impl Case {
    pub(crate) fn name(&self) -> String {
        format!("{}-{}-{}", self.shape.name, self.mode.name(), self.backend)
    }
}

/// A cell of the table: the command, and the reason if it failed.
pub(crate) type Answer = (Cell, Option<String>);

/// A user with an agent that waits.
pub(crate) struct Scene {
    home: TestHome,
}

impl Scene {
    /// Creates a scene. Returns `None` if no backend runs on this machine, so that the test is skipped.
    pub(crate) fn new(test: &str, backends: &[&'static str]) -> Result<Option<(Self, Vec<&'static str>)>> {
        let mut home = TestHome::new()?;
        for backend in backends {
            let provider = "{template: command, command: [sleep, \"600\"]}";
            let manifest = format!("---\nbackend: {backend}\nagent_provider: {provider}\n---\n");
            home.bottle(backend, &manifest)?.agent(backend, &format!("---\nbottle: {backend}\n---\n"))?;
        }
        let mut here = Vec::new();
        for backend in backends {
            if home.runs_with_git(test, backend)? {
                here.push(*backend);
            }
        }
        Ok((!here.is_empty()).then_some((Self { home }, here)))
    }

    /// Runs all commands on a case. After a failed start, the other commands do not run.
    ///
    /// # Errors
    /// Returns an error if the shape cannot be made, or plain git fails.
    pub(crate) fn test(&self, case: Case) -> Result<Vec<Answer>> {
        let root = self.home.outside(&format!("cases/{}", case.name()));
        let user = Side::make(root.join("user"), case.shape)?;
        let mut twin = Side::make(root.join("twin"), case.shape)?;
        if !case.shape.has_repository {
            twin = twin.with_scratch()?;
        }
        let run = Run { home: &self.home, case, user, twin, slug: case.name() };
        let cells = run.cells();
        run.end()?;
        let cells = cells.with_context(|| case.name())?;
        run.remove(&root)?;
        Ok(cells)
    }
}

/// The ids of the trees that plain git makes, with which the results are compared.
struct Expected {
    /// The paths of the files that a program converts, and the objects with their unconverted content at the start.
    raw_start: Vec<(String, String)>,
    /// The commit with which `diff` compares, or the tree if there is no commit.
    base: String,
    /// The commit at the start. Empty if there is none.
    head: String,
    /// The tree of which `diff` shows the differences.
    tree: String,
    /// The tree of a commit of the agent's work.
    committed: String,
}

struct Run<'a> {
    home: &'a TestHome,
    case: Case,
    user: Side,
    twin: Side,
    slug: String,
}

impl Run<'_> {
    fn cells(&self) -> Result<Vec<Answer>> {
        let mut cells = Vec::new();
        let before = Tree::read(&self.user.root)?;
        let started = self.start()?;
        cells.push(cell(Cell::Start, self.is_like_the_original(&before, &started)));
        if started.code != 0 {
            return Ok(cells);
        }
        let start = self.tree()?;
        let raw_start = self.raw_files()?;
        self.edit(&[EDITS, self.case.shape.edits].concat())?;
        let head = self.twin.in_top("git rev-parse -q --verify HEAD || true")?.trim().to_owned();
        let all = self.tree()?;
        // In a copy, the user's own changes are not work of the agent. In a live directory, all changes are.
        let committed =
            if self.case.mode == Mode::Copy { self.agents(&head, &start, &all)? } else { all.clone() };
        let (base, tree) = if head.is_empty() { (start, all) } else { (head.clone(), committed.clone()) };
        let expected = Expected { raw_start, base, head, tree, committed };
        cells.push(cell(Cell::Diff, self.diff(&expected)));
        if self.case.shape.has_repository {
            cells.push(cell(Cell::Pull, self.pull(&expected)));
            cells.push(cell(Cell::PullUncommitted, self.pull_uncommitted(&expected)));
        }
        cells.push(cell(Cell::Apply, self.apply()));
        self.edit(LATER)?;
        let committed = self.case.shape.commits.then(|| self.commit());
        // Of a bottle with a live directory, only the commits are kept.
        if self.case.mode == Mode::Copy || self.case.shape.commits {
            cells.push(cell(Cell::Resume, self.resume()));
        }
        if let Some(committed) = committed {
            cells.push(cell(Cell::CommitAndPull, committed.and_then(|()| self.pull_commit())));
        }
        Ok(cells)
    }

    fn start(&self) -> Result<Outcome> {
        let cwd = if self.case.mode == Mode::Live { "--cwd=live" } else { "--cwd" };
        let mut start = vec!["start", self.case.backend, cwd, "--detach", "--yes", "--label", &self.slug];
        start.extend(self.case.shape.flags);
        self.bottle(&start)
    }

    /// The bottle has all files of the project, and git in the bottle sees the same state as the user's git.
    fn is_like_the_original(&self, before: &Tree, started: &Outcome) -> Result<()> {
        ensure!(started.code == 0, "{}", started.transcript());
        self.is_unchanged(before, Allowed::Nothing)?;
        let files = before.work(self.case.shape.copied());
        let listed = match self.case.shape.has_repository && self.case.mode == Mode::Copy {
            true => self.user.project_files()?,
            false => files.paths(),
        };
        let is = self.listed()?;
        no(lines_differ(&is, &files.listed(&listed)), "the files in the bottle", started)?;
        if self.case.shape.commits {
            let is = self.inside(STATE)?;
            let expected = self.user.in_top(STATE)?;
            let (is, expected): (Vec<_>, Vec<_>) = (is.lines().collect(), expected.lines().collect());
            no(lines_differ(&is, &expected), "the state of git in the bottle", started)?;
        }
        Ok(())
    }

    /// Runs a script as the agent in the bottle, and as the user in the twin.
    fn edit(&self, script: &str) -> Result<()> {
        let builds = if self.case.mode == Mode::Live { "BUILDS=1" } else { "BUILDS=" };
        let _ = self.twin.run(&format!("{builds}\n{script}"))?;
        let _ = self.inside_at(&self.case.shape.inside(), &format!("BUILDS=1\n{script}"))?;
        Ok(())
    }

    /// The tree of the commit that plain git makes of all changes in the twin.
    fn tree(&self) -> Result<String> {
        let left_out = self.case.shape.left_out.iter().map(|path| {
            format!(
                "git rm -rqf --cached --ignore-unmatch -- '{path}' >&2
                 git rev-parse -q --verify HEAD >/dev/null && git ls-tree -r HEAD '{path}' | git update-index --index-info\n"
            )
        });
        let script = format!(
            "index=$(git rev-parse --path-format=absolute --git-path index)
             rm -f \"$index.all\"; cp \"$index\" \"$index.all\" 2>/dev/null || true
             export GIT_INDEX_FILE=\"$index.all\"
             git add -A >&2
             {}git write-tree",
            left_out.collect::<String>()
        );
        Ok(self.twin.in_top(&script)?.trim().to_owned())
    }

    /// The tree of a commit that makes the changes between two trees.
    fn agents(&self, head: &str, start: &str, all: &str) -> Result<String> {
        let read = if head.is_empty() { "--empty" } else { head };
        let script = format!(
            r"export GIT_INDEX_FILE=$(git rev-parse --path-format=absolute --git-path index).agents
             git read-tree {read}
             git diff-tree -r -z --no-renames {start} {all} |
               LC_ALL=C sed -z 'N; s/^:[0-7]* \([0-7]*\) [0-9a-f]* \([0-9a-f]*\) [A-Z]\x00/\1 \2\t/' |
               git update-index -z --index-info
             git write-tree"
        );
        Ok(self.twin.in_top(&script)?.trim().to_owned())
    }

    /// The files that a program converts: their paths, and the objects with their unconverted content.
    fn raw_files(&self) -> Result<Vec<(String, String)>> {
        let object = |path: &&str| {
            let hash = format!("git hash-object -w --no-filters '{path}'");
            Ok(((*path).to_owned(), self.twin.in_top(&hash)?.trim().to_owned()))
        };
        self.case.shape.filtered.iter().map(object).collect()
    }

    /// The tree of a commit or tree in which these objects are at these paths.
    fn with_raw_files(&self, commit: &str, files: &[(String, String)]) -> Result<String> {
        if files.is_empty() {
            return Ok(commit.to_owned());
        }
        let lines: String = files
            .iter()
            .map(|(path, object)| format!("git update-index --cacheinfo 100644,{object},'{path}'\n"))
            .collect();
        let script = format!(
            "index=$(git rev-parse --path-format=absolute --git-path index)
             export GIT_INDEX_FILE=\"$index.raw\"
             git read-tree {commit}; {lines} git write-tree"
        );
        Ok(self.twin.in_top(&script)?.trim().to_owned())
    }

    /// Checks that the patch changes the tree of plain git's commit to plain git's tree, and names the same files.
    fn diff(&self, expected: &Expected) -> Result<()> {
        let before = Tree::read(&self.user.root)?;
        let patch = self.bottle(&["diff", &self.slug])?;
        self.is_unchanged(&before, Allowed::Nothing)?;
        ensure!(patch.code == 0, "{}", patch.transcript());
        let base = &self.with_raw_files(&expected.base, &expected.raw_start)?;
        let tree = &self.with_raw_files(&expected.tree, &self.raw_files()?)?;
        let named = self.bottle(&["diff", &self.slug, "--name-only"])?;
        let names = format!("git diff --name-only {base} {tree}");
        let names = self.twin.in_top(&names)?;
        let (is, wanted): (Vec<_>, Vec<_>) = (named.stdout.lines().collect(), names.lines().collect());
        no(lines_differ(&is, &wanted), "the names", &named)?;
        fs::write(self.twin.root.join("patch"), &patch.stdout)?;
        let script = format!(
            "index=$(git rev-parse --path-format=absolute --git-path index)
             export GIT_INDEX_FILE=\"$index.patch\"
             git read-tree {base}; git apply --cached --allow-empty --whitespace=nowarn '{}' >&2
             git write-tree",
            self.twin.root.join("patch").display()
        );
        let made = self.twin.in_top(&script)?;
        self.same_tree(&self.twin, made.trim(), tree)
    }

    /// Checks `pull`. Without commits, there is nothing to pull.
    fn pull(&self, expected: &Expected) -> Result<()> {
        let before = Tree::read(&self.user.root)?;
        let refs = self.refs()?;
        let pulled = self.bottle(&["pull", &self.slug])?;
        self.is_unchanged(&before, Allowed::Branch)?;
        ensure!(self.refs()? == refs, "the references changed: {}", pulled.transcript());
        let branch = self.user.in_top(&format!("git rev-parse -q --verify {} || true", self.branch()))?;
        let branch = branch.trim();
        ensure!(branch.is_empty() || branch == expected.head, "it pulled {branch}: {}", pulled.transcript());
        Ok(())
    }

    fn pull_uncommitted(&self, expected: &Expected) -> Result<()> {
        let pulled = self.pulls(&["pull", &self.slug, "--uncommitted"])?;
        let is_elsewhere = |path: &&&str| !self.case.shape.submodules.contains(path);
        for path in self.case.shape.left_out.iter().filter(is_elsewhere) {
            ensure!(pulled.transcript().contains(path), "{path} is not named: {}", pulled.transcript());
        }
        let [tree, parents] = self.shown(&self.user, &self.branch())?;
        self.same_tree(&self.user, &tree, &expected.committed).with_context(|| pulled.transcript())?;
        ensure!(parents == expected.head, "the parents are {parents:?}: {}", pulled.transcript());
        Ok(())
    }

    /// Checks that `apply` makes the user's files equal to the files of the twin.
    fn apply(&self) -> Result<()> {
        let before = Tree::read(&self.user.root)?;
        let applied = self.bottle(&["apply", &self.slug, "--yes"])?;
        if self.case.mode == Mode::Live {
            ensure!(applied.code != 0, "{}", applied.transcript());
            return self.is_unchanged(&before, Allowed::Nothing);
        }
        let directory = self.case.shape.copied();
        let after = Tree::read(&self.user.root)?;
        let twin = Tree::read(&self.twin.root)?.work(directory);
        let work = before.work(directory);
        let expected = twin.with_original(self.case.shape.not_applied, &work);
        no(after.work(directory).differences(&expected, Some(&work)), "the user's files", &applied)?;
        ensure!(applied.code == 0, "{}", applied.transcript());
        for path in self.case.shape.not_applied {
            ensure!(applied.stderr.contains(path), "{path} is not named: {}", applied.transcript());
        }
        let nothing = |_: &Path| false;
        let differences =
            after.beside(directory, nothing).differences(&before.beside(directory, nothing), Some(&before));
        no(differences, "other files", &applied)
    }

    /// Checks that the resumed bottle has the same files and the same state of git as before.
    fn resume(&self) -> Result<()> {
        let before = Tree::read(&self.user.root)?;
        let state = |run: &Self| if run.case.shape.commits { run.inside(STATE) } else { Ok(String::new()) };
        let (files, git) = (self.listed()?, state(self)?);
        let stopped = self.bottle(&["stop", &self.slug, "--time", "0"])?;
        ensure!(stopped.code == 0, "{}", stopped.transcript());
        let resumed = self.bottle(&["resume", &self.slug, "--detach", "--yes"])?;
        ensure!(resumed.code == 0, "{}\n{}", stopped.transcript(), resumed.transcript());
        no(lines_differ(&self.listed()?, &files), "the files in the bottle", &resumed)?;
        ensure!(state(self)? == git, "git in the bottle sees another state: {}", resumed.transcript());
        self.is_unchanged(&before, Allowed::Nothing)
    }

    /// Makes a commit as the agent in the bottle, and as the user in the twin.
    fn commit(&self) -> Result<()> {
        let plain = "git -c commit.gpgsign=false -c core.hooksPath=/dev/null commit -qm work";
        let _ = self.twin.in_top(&format!("git add -A; {plain}"))?;
        let _ = self.inside("git add -A; git commit -qm work")?;
        Ok(())
    }

    /// Checks that the user gets the commit that plain git makes.
    fn pull_commit(&self) -> Result<()> {
        let pulled = self.pulls(&["pull", &self.slug])?;
        let [tree, parents] = self.shown(&self.user, &self.branch())?;
        let expected = self.shown(&self.twin, "HEAD")?;
        self.same_tree(&self.user, &tree, &expected[0]).with_context(|| pulled.transcript())?;
        ensure!(parents == expected[1], "the parents are {parents:?}: {}", pulled.transcript());
        for path in self.case.shape.submodules {
            let is = self.user.in_top(&format!("git -C '{path}' rev-parse {}", self.branch()))?;
            let expected = self.twin.in_top(&format!("git -C '{path}' rev-parse HEAD"))?;
            ensure!(is == expected, "{path} has {is}, expected {expected}: {}", pulled.transcript());
        }
        Ok(())
    }

    /// Runs a pull. Only the bottle's branch may change in the user's repository, and afterwards the repository must
    /// have all objects of the branch.
    fn pulls(&self, arguments: &[&str]) -> Result<Outcome> {
        let before = Tree::read(&self.user.root)?;
        let refs = self.refs()?;
        let pulled = self.bottle(arguments)?;
        self.is_unchanged(&before, Allowed::Branch)?;
        ensure!(self.refs()? == refs, "the references changed: {}", pulled.transcript());
        ensure!(pulled.code == 0, "{}", pulled.transcript());
        let objects = format!("git rev-list --objects --missing=allow-promisor {} >/dev/null", self.branch());
        let _ = self.user.in_top(&objects).with_context(|| pulled.transcript())?;
        Ok(pulled)
    }

    fn branch(&self) -> String {
        format!("refs/heads/bottle/{}", self.slug)
    }

    /// All references of the user except those that a pull writes.
    fn refs(&self) -> Result<String> {
        let refs = self.user.in_top(
            "git for-each-ref --format='%(refname) %(objectname) %(symref)'; git symbolic-ref -q HEAD || git rev-parse HEAD",
        )?;
        let others = refs.lines().filter(|line| !line.starts_with("refs/heads/bottle/"));
        Ok(others.collect::<Vec<_>>().join("\n"))
    }

    /// The tree and the parents of a commit.
    fn shown(&self, side: &Side, commit: &str) -> Result<[String; 2]> {
        let shown = side.in_top(&format!("git log -1 --format='%T%n%P' {commit}"))?;
        let mut lines = shown.lines().map(str::to_owned);
        Ok([lines.next().unwrap_or_default(), lines.next().unwrap_or_default()])
    }

    fn same_tree(&self, side: &Side, is: &str, expected: &str) -> Result<()> {
        if is == expected {
            return Ok(());
        }
        let list = |side: &Side, tree: &str| side.in_top(&format!("git ls-tree -r {tree}"));
        let (is, expected) = (list(side, is)?, list(&self.twin, expected)?);
        let (is, expected): (Vec<_>, Vec<_>) = (is.lines().collect(), expected.lines().collect());
        bail!("the tree:\n{}", lines_differ(&is, &expected).join("\n"))
    }

    /// Checks that the user's files are equal to `before`.
    fn is_unchanged(&self, before: &Tree, allowed: Allowed) -> Result<()> {
        let after = Tree::read(&self.user.root)?;
        let is_allowed = |path: &Path| allowed == Allowed::Branch && is_of_pulled_branch(path);
        // No entry is in a directory that does not exist, so `beside` returns all entries.
        let all = |tree: &Tree| tree.beside("\0", is_allowed);
        let differences = all(&after).differences(&all(before), Some(before));
        ensure!(differences.is_empty(), "the user's files:\n{}", differences.join("\n"));
        Ok(())
    }

    fn listed(&self) -> Result<Vec<String>> {
        let listed = self.inside(LIST)?;
        let mut lines: Vec<String> =
            listed.split('\0').filter(|line| !line.is_empty()).map(str::to_owned).collect();
        lines.sort();
        Ok(lines)
    }

    /// Runs a script in the bottle. Returns its output.
    fn inside(&self, script: &str) -> Result<String> {
        self.inside_at("/workspace", script)
    }

    fn inside_at(&self, path: &str, script: &str) -> Result<String> {
        let done = self.bottle(&["exec", &self.slug, "--workdir", path, "--", "/bin/sh", "-ec", script])?;
        ensure!(done.code == 0, "{script} in the bottle: {}", done.transcript());
        Ok(done.stdout)
    }

    fn bottle(&self, arguments: &[&str]) -> Result<Outcome> {
        let mut program = self.home.program(arguments.iter().copied())?;
        program.directory(&self.user.directory).env("HOME", self.user.root.join("home"));
        program.run()
    }

    fn end(&self) -> Result<()> {
        for arguments in [
            &["stop", &self.slug, "--time", "0", "-q"][..],
            &["discard", &self.slug, "--yes", "-q"],
            &["snapshots", "rm", &self.slug, "-q"],
        ] {
            // A bottle that did not start, or that was not kept, does not exist, so errors are ignored.
            let _ = self.bottle(arguments)?;
        }
        Ok(())
    }

    fn remove(&self, root: &PathBuf) -> Result<()> {
        // A shape can have directories that nobody can write to.
        for side in [&self.user, &self.twin] {
            let _ = side.in_top("chmod -R u+rwX .")?;
        }
        Ok(fs::remove_dir_all(root)?)
    }
}

/// The changes that a command may make in the user's repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Allowed {
    Nothing,
    /// The branch of the bottle, and objects, may change.
    Branch,
}

/// Whether a path in a git directory is an object, or belongs to the branch of a bottle.
fn is_of_pulled_branch(path: &Path) -> bool {
    let text = path.to_string_lossy();
    let is_log = ["/logs", "/logs/refs", "/logs/refs/heads"].iter().any(|end| text.ends_with(end));
    is_log || ["/objects/", "/refs/heads/bottle", "/reftable/"].iter().any(|part| text.contains(part))
}

fn cell(cell: Cell, result: Result<()>) -> Answer {
    (cell, result.err().map(|error| format!("{error:#}")))
}

/// Fails if there are differences.
fn no(differences: Vec<String>, what: &str, outcome: &Outcome) -> Result<()> {
    ensure!(differences.is_empty(), "{what}:\n{}\n{}", differences.join("\n"), outcome.transcript());
    Ok(())
}
