//! A temporary repository in which a bottle's work is compared with the user's commit.
//!
//! ```text
//!  the bottle's HEAD ── fetch, objects checked ──► ┌─────────┐
//!  the user's objects ── alternates, only read ──► │ scratch │ ──► diff by the host's git
//!  the workspace's files ── the guest's archive ──►└─────────┘
//! ```
//! The bottle cannot influence the comparison: its configuration is not copied, its attributes are
//! overridden, and its index and replace references are not used. Dropping the value deletes the repository.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bottle_channel::Channel;
use bottle_contract::session::guest::{CopyOut, GuestRequest};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::host::{FetchCause, Repository, spawn_failed, stderr_tail};
use super::ignored::{FILE_NAME, Ignored, MAX_FILE};
use super::workspace::{self, Baseline, Entry, LeftOut, quoted};
use super::{ObjectId, Root, copy_out_hint};
use crate::archive;
use crate::cli::connect::{open_guest, receive_failed};
use crate::cli::error::CliError;
use crate::host::temporary::Temporary;
use crate::host::{Host, disk};

/// Attributes for every path, with precedence over those of trees and configuration, so that a diff compares
/// bytes.
const ATTRIBUTES: &str =
    "* !diff !text !crlf !eol !ident !filter !working-tree-encoding !whitespace !merge\n";

/// The references for the bottle's history and for the files of its workspace.
const HISTORY: &str = "refs/bottle/history";
pub(super) const FILES: &str = "refs/bottle/workspace";

/// The reference for the base with the files of the workspace in one of its folders.
const WHOLE: &str = "refs/bottle/whole";

/// The same for the first one of two bottles that are compared with each other.
const FIRST_HISTORY: &str = "refs/bottle/first-history";
const FIRST_FILES: &str = "refs/bottle/first-workspace";

/// The references for two trees in a folder.
const IN_FOLDER: [&str; 2] = ["refs/bottle/from-folder", "refs/bottle/to-folder"];

/// The name of the remote repository that has the objects which a partial clone lacks. It has no address, so that git
/// does not fetch them.
const PROMISOR: &str = "partial";

/// The time limit for one git command or import, because the agent controls the amount of data. A step that
/// takes longer is an error.
const STEP_TIMEOUT: Duration = Duration::from_secs(300);

/// The maximum number of bytes read from a diff, which is truncated beyond it, and from a list of all files, for
/// which exceeding it is an error.
const MAX_OUTPUT: usize = 16 << 20;
pub(super) const MAX_LISTING: usize = 256 << 20;

/// The maximum number of ignore files read from one commit. The rules of further files are not applied.
const MAX_IGNORE_FILES: usize = 200;

/// The maximum number of paths in the arguments of one `git diff`, and the maximum of their total bytes. Beyond
/// one of these limits, the diff covers all paths.
const MAX_PATHS: usize = 500;
const MAX_PATH_BYTES: usize = 64 << 10;

/// A temporary bare repository; see the diagram at the top of this file.
pub(crate) struct Scratch<'a> {
    pub(super) repository: Repository<'a>,
    /// Shared with the threads that import or read files, which may still run when this value is dropped.
    pub(super) folder: Arc<Temporary>,
}

/// The base of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Base {
    /// The commit; none stands for an empty tree.
    pub(crate) commit: Option<ObjectId>,
    /// The tree that is compared with the workspace: that of the commit, or a folder of it.
    pub(super) tree: ObjectId,
    /// The path of this folder, which ends with a slash; empty for the whole tree.
    pub(super) prefix: String,
    /// Whether it is a commit of the user's repository.
    pub(crate) is_own: bool,
}

impl Base {
    /// The commit whose ignore rules apply, if it is the user's, and the path of the workspace in it.
    pub(super) fn rules(&self) -> Option<(&ObjectId, &str)> {
        self.commit.as_ref().filter(|_| self.is_own).map(|commit| (commit, self.prefix.as_str()))
    }
}

/// The trees from which an import knows files and ignore rules.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    /// Trees or commits whose files are not ignored. A file that cannot be imported has the version of the first one
    /// that contains it.
    pub(super) trees: [Option<&'a ObjectId>; 2],
    /// A commit of the user, whose ignore rules apply, and the path of the workspace in it.
    pub(super) rules: Option<(&'a ObjectId, &'a str)>,
    /// The user's repository, whose exclude file applies together with these rules.
    pub(super) own: Option<&'a Repository<'a>>,
}

/// The form of a comparison's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// A unified diff for reading, of limited length.
    Text,
    /// A complete patch, which `git apply` takes.
    Patch,
    /// A complete patch of limited length.
    BoundedPatch,
    /// The number of changed lines of each file.
    Stat,
    /// The paths of the changed files.
    NameOnly,
}

impl Form {
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Text => &[],
            Self::Patch | Self::BoundedPatch => &["--binary", "--full-index"],
            Self::Stat => &["--stat"],
            Self::NameOnly => &["--name-only"],
        }
    }
}

/// The result of a comparison.
pub(crate) enum Content {
    Text(Text),
    /// A complete patch, for [`Form::Patch`].
    File(File),
}

/// The result of comparing a workspace with its base.
pub(crate) struct Compared {
    /// The changes from the base to the workspace.
    pub(crate) diff: Content,
    /// A unified diff from the base to the bottle's last commit, limited to files that differ between this
    /// commit and the workspace.
    pub(crate) committed: Text,
    pub(crate) left_out: LeftOut,
}

/// Output of limited length, and whether it was truncated.
#[derive(Default)]
pub(crate) struct Text {
    pub(crate) bytes: Vec<u8>,
    pub(crate) cut: bool,
}

impl<'a> Scratch<'a> {
    /// Creates an empty repository that can read the objects of the user's repository `own`, if there is one.
    ///
    /// # Errors
    /// Returns an error if the repository cannot be created.
    pub(crate) async fn create(
        host: &'a Host,
        own: Option<&Repository<'_>>,
        like: Option<&ObjectId>,
    ) -> Result<Self, CliError> {
        let unmade = |error: io::Error| {
            let hint = disk::hint(&error);
            CliError::cannot("create a temporary folder for the comparison", error).hint(hint)
        };
        let folder = host.temporary("diff-");
        let folder = Arc::new(folder.map_err(unmade)?);
        let repository = Repository { host, folder: folder.path().to_owned() };
        let long = like.is_some_and(|id| id.as_str().len() == 64);
        let format = if long { "--object-format=sha256" } else { "--object-format=sha1" };
        expect(&repository, &["init", "--quiet", "--bare", "--template=", format, "."]).await?;
        let info = folder.path().join("info");
        fs::create_dir_all(&info)
            .and_then(|()| fs::write(info.join("attributes"), ATTRIBUTES))
            .map_err(unmade)?;
        if let Some(own) = own {
            let objects = own.git_path("objects").await?;
            let path = folder.path().join("objects/info/alternates");
            fs::write(path, quoted(objects.as_os_str().as_encoded_bytes())).map_err(unmade)?;
            if own.is_partial().await? {
                // Otherwise git would look for the objects that the user's clone does not have.
                for (key, value) in [
                    ("core.repositoryFormatVersion", "1"),
                    ("extensions.partialClone", PROMISOR),
                    (&format!("remote.{PROMISOR}.promisor"), "true"),
                ] {
                    expect(&repository, &["config", key, value]).await?;
                }
            }
            // Copies the file that lists the boundary of a shallow clone. Without it, git would look for the
            // missing parent commits.
            match fs::copy(own.git_path("shallow").await?, folder.path().join("shallow")) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unmade(error)),
                _ => {}
            }
        }
        Ok(Self { repository, folder })
    }

    /// Fetches the bottle's `HEAD`; none if the bottle's repository has no commits.
    ///
    /// # Errors
    /// Returns an error if the fetch fails, for which the bottle's git may be the cause.
    pub(crate) async fn fetch(&self, root: &Root) -> Result<Option<ObjectId>, CliError> {
        self.fetch_as(root, HISTORY).await
    }

    /// Fetches a branch of the bottle.
    ///
    /// # Errors
    /// Returns an error if the branch's name is invalid, the bottle has no such branch, or the fetch fails.
    pub(crate) async fn fetch_branch(&self, root: &Root, branch: &str) -> Result<ObjectId, CliError> {
        let source = self.repository.branch_reference(branch).await?;
        let fetched = self.repository.fetch_as(root, &source, HISTORY).await?;
        fetched.map_err(|error| error.explained(root, Some(branch)))?;
        let commit = self.repository.resolve(HISTORY).await?;
        commit
            .ok_or_else(|| CliError::state(format!("the branch {branch:?} of {} is not a commit", root.slug)))
    }

    async fn fetch_as(&self, root: &Root, reference: &str) -> Result<Option<ObjectId>, CliError> {
        match self.repository.fetch_as(root, "HEAD", reference).await? {
            Ok(()) => self.repository.resolve(reference).await,
            Err(error) if error.cause == FetchCause::NoSuchReference => Ok(None),
            Err(error) => Err(CliError::failed(error.to_string()).hint(copy_out_hint(&root.slug))),
        }
    }

    /// Returns the base of the comparison: the merge base of the bottle's last commit and the user's `head`.
    /// Without a common history, the base is the user's `head` if the workspace was `copied` from it,
    /// otherwise the bottle's last commit.
    ///
    /// # Errors
    /// Returns an error if git is not installed.
    pub(crate) async fn base(
        &self,
        head: Option<&ObjectId>,
        tip: Option<&ObjectId>,
        copied: Option<&Repository<'_>>,
    ) -> Result<Base, CliError> {
        if let (Some(head), Some(tip)) = (head, tip) {
            let found = self.repository.git(&["merge-base", head.as_str(), tip.as_str()]).await?;
            if let Some(commit) = ObjectId::parse(&String::from_utf8_lossy(&found.stdout)) {
                let (tree, prefix) = (commit.clone(), String::new());
                return Ok(Base { commit: Some(commit), tree, prefix, is_own: true });
            }
        }
        let (Some(head), Some(own)) = (head, copied) else {
            let tree = self.tree_of(tip).await?;
            return Ok(Base { commit: tip.cloned(), tree, prefix: String::new(), is_own: false });
        };
        // Without a repository of its own, the workspace is a copy of the folder.
        let prefix = own.prefix().await?;
        let tree = match prefix.as_str() {
            "" => head.clone(),
            folder => match self.tree_at(head, folder).await? {
                Some(tree) => tree,
                None => self.tree_of(None).await?,
            },
        };
        Ok(Base { commit: Some(head.clone()), tree, prefix, is_own: true })
    }

    /// Returns the tree of a folder in a commit; none if the commit has no such folder.
    async fn tree_at(&self, commit: &ObjectId, folder: &str) -> Result<Option<ObjectId>, CliError> {
        let mut name = format!("{}:{}", commit.as_str(), folder.trim_end_matches('/'));
        // The second step refuses a file.
        for _ in 0..2 {
            let arguments = ["rev-parse", "--quiet", "--verify", "--end-of-options", &name];
            let found = self.repository.git(&arguments).await?;
            match ObjectId::parse(&String::from_utf8_lossy(&found.stdout)) {
                Some(id) if found.status.success() => name = format!("{}^{{tree}}", id.as_str()),
                _ => return Ok(None),
            }
        }
        Ok(ObjectId::parse(name.trim_end_matches("^{tree}")))
    }

    /// Imports the workspace's files, and compares them with the base. With `folder`, the paths begin with it,
    /// otherwise they are those in the user's repository.
    ///
    /// # Errors
    /// Returns an error if the import or git fails.
    pub(crate) async fn compare(
        &self,
        bottle: (&Channel, &Root),
        own: Option<&Repository<'_>>,
        base: &Base,
        tip: Option<&ObjectId>,
        (form, folder): (Form, Option<&str>),
    ) -> Result<Compared, CliError> {
        let left_out = self.import_beside(bottle, own, base, tip).await?;
        let from = base.tree.as_str();
        let committed = match tip {
            Some(tip) => self.committed(from, tip, folder).await?,
            None => Text::default(),
        };
        let prefixes = ["--src-prefix=a/", "--dst-prefix=b/"];
        if let Some(folder) = folder {
            let diff = self.content_in_folder(form, prefixes, [from, FILES], folder).await?;
            return Ok(Compared { diff, committed, left_out });
        }
        let diff = match &base.commit {
            // The paths are those in the user's repository.
            Some(commit) if !base.prefix.is_empty() => {
                let tree = self.tree_of_reference(FILES).await?;
                workspace::commit_folder(self.repository.command(), WHOLE, commit, (&base.prefix, &tree))
                    .map_err(|error| CliError::cannot("compare the folder", error))?;
                self.content(form, prefixes, commit.as_str(), WHOLE).await?
            }
            _ => self.content(form, prefixes, from, FILES).await?,
        };
        Ok(Compared { diff, committed, left_out })
    }

    /// Imports the workspace. The ignore rules of the base apply, if it is a commit of the user.
    pub(super) async fn import_beside(
        &self,
        bottle: (&Channel, &Root),
        own: Option<&Repository<'_>>,
        base: &Base,
        tip: Option<&ObjectId>,
    ) -> Result<LeftOut, CliError> {
        self.import(bottle, FILES, Known { trees: [Some(&base.tree), tip], rules: base.rules(), own }).await
    }

    /// Imports the workspaces of two bottles, and compares the first one with the second one. Files that the user's
    /// commit `head` or a bottle's last commit tracks are not ignored.
    ///
    /// # Errors
    /// Returns an error if an import or git fails.
    pub(crate) async fn compare_two(
        &self,
        bottles: [(&Channel, &Root); 2],
        own: Option<&Repository<'_>>,
        head: Option<&ObjectId>,
        (form, folder): (Form, Option<&str>),
    ) -> Result<(Content, [LeftOut; 2]), CliError> {
        let known = |tip| Known { trees: [head, tip], rules: head.map(|head| (head, "")), own };
        let [first, second] = bottles;
        // A bottle without a git repository is compared by its files.
        let tip = self.fetch_as(first.1, FIRST_HISTORY).await.ok().flatten();
        let left_out_of_first = self.import(first, FIRST_FILES, known(tip.as_ref())).await?;
        let tip = self.fetch(second.1).await.ok().flatten();
        let left_out_of_second = self.import(second, FILES, known(tip.as_ref())).await?;
        let prefixes =
            [format!("--src-prefix={}/", first.1.slug), format!("--dst-prefix={}/", second.1.slug)];
        let prefixes = prefixes.each_ref().map(String::as_str);
        let diff = match folder {
            Some(folder) => self.content_in_folder(form, prefixes, [FIRST_FILES, FILES], folder).await?,
            None => self.content(form, prefixes, FIRST_FILES, FILES).await?,
        };
        Ok((diff, [left_out_of_first, left_out_of_second]))
    }

    /// Imports the workspace of a bottle as a commit, and points `reference` at it.
    pub(super) async fn import(
        &self,
        (channel, root): (&Channel, &Root),
        reference: &'static str,
        known: Known<'_>,
    ) -> Result<LeftOut, CliError> {
        let mut ignored = Ignored::default();
        if let Some((commit, prefix)) = known.rules {
            ignored.prefix = prefix.into();
            self.rules(&self.listed(commit).await?, known.own, &mut ignored).await?;
        }
        let mut tracked = HashMap::new();
        for tree in known.trees.into_iter().flatten() {
            for (path, entry) in self.listed(tree).await? {
                tracked.entry(path).or_insert(entry);
            }
        }
        let sparse = match known.own {
            Some(own) => own.left_out_by_sparse_checkout().await?,
            None => HashSet::new(),
        };
        let request = CopyOut { path: root.path() };
        let stream = open_guest(channel, GuestRequest::CopyOut(request)).await?;
        let (git, folder) = (self.repository.command(), Arc::clone(&self.folder));
        let take = move |archive: &mut dyn Read| {
            // The folder is deleted when the last reference to it is dropped.
            let _folder = folder;
            workspace::import(git, reference, Baseline { tracked, sparse, ignored }, archive)
        };
        let unread = |error| CliError::cannot(format!("read {root}"), error);
        archive::receive(stream, take).await.map_err(|error| receive_failed(error, &root.slug, unread))
    }

    /// Reads the ignore rules of the user's commit and of the user's repository.
    async fn rules(
        &self,
        tracked: &HashMap<Vec<u8>, Entry>,
        own: Option<&Repository<'_>>,
        ignored: &mut Ignored,
    ) -> Result<(), CliError> {
        let mut read = 0;
        for (path, (mode, object)) in tracked {
            let Ok(path) = std::str::from_utf8(path) else { continue };
            let path = Path::new(path);
            if path.file_name().is_none_or(|name| name != FILE_NAME)
                || mode == "120000"
                || read == MAX_IGNORE_FILES
            {
                continue;
            }
            read += 1;
            let text = bounded(&self.repository, &["cat-file", "blob", object], MAX_FILE).await?;
            let folder = path.parent().unwrap_or(Path::new(""));
            ignored.own.add(folder, &String::from_utf8_lossy(&text.bytes));
        }
        if let Some(own) = own {
            let text = fs::read_to_string(own.git_path("info/exclude").await?);
            text.into_iter().for_each(|text| ignored.own.add(Path::new(""), &text));
        }
        Ok(())
    }

    /// Returns all files of a tree or commit.
    pub(super) async fn listed(&self, tree: &ObjectId) -> Result<HashMap<Vec<u8>, Entry>, CliError> {
        let arguments = ["ls-tree", "-r", "-z", "--full-tree", tree.as_str()];
        let listed = bounded(&self.repository, &arguments, MAX_LISTING).await?;
        if listed.cut {
            return Err(CliError::failed("cannot compare: a commit has too many files"));
        }
        // Each entry has the form `MODE TYPE OBJECT\tPATH`.
        let entry = |entry: &[u8]| {
            let tab = entry.iter().position(|byte| *byte == b'\t')?;
            let mut words = std::str::from_utf8(&entry[..tab]).ok()?.split(' ');
            let (mode, object) = (words.next()?, words.nth(1)?);
            Some((entry[tab + 1..].to_vec(), (mode.to_owned(), object.to_owned())))
        };
        Ok(listed.bytes.split(|byte| *byte == 0).filter_map(entry).collect())
    }

    /// Compares the base with the bottle's last commit, for files that differ between this commit and the
    /// workspace, because a pull fetches the commit. Lines that the workspace's diff also contains are
    /// included, because the same lines can have another meaning in another order or inside a comment.
    async fn committed(&self, from: &str, tip: &ObjectId, folder: Option<&str>) -> Result<Text, CliError> {
        let since = self.changed(from, tip.as_str()).await?;
        let mut paths = self.changed(tip.as_str(), FILES).await?;
        paths.retain(|path| since.binary_search(path).is_ok());
        if paths.is_empty() {
            return Ok(Text::default());
        }
        let few = paths.len() <= MAX_PATHS && paths.iter().map(Vec::len).sum::<usize>() <= MAX_PATH_BYTES;
        // If a path is not UTF-8, the diff covers all paths.
        let paths = paths.into_iter().map(String::from_utf8).collect::<Result<Vec<_>, _>>();
        let paths = paths.ok().filter(|_| few).unwrap_or_default();
        self.diff(from, tip.as_str(), &paths, folder).await
    }

    /// Returns the paths that differ, sorted.
    pub(super) async fn changed(&self, from: &str, to: &str) -> Result<Vec<Vec<u8>>, CliError> {
        let arguments = ["diff", "--name-only", "-z", "--no-renames", "--no-ext-diff", from, to, "--"];
        let listed = bounded(&self.repository, &arguments, MAX_OUTPUT).await?;
        let paths = listed.bytes.split(|byte| *byte == 0).filter(|path| !path.is_empty());
        let mut paths: Vec<Vec<u8>> = paths.map(<[u8]>::to_vec).collect();
        paths.sort_unstable();
        Ok(paths)
    }

    /// Compares two trees.
    pub(super) async fn content(
        &self,
        form: Form,
        prefixes: [&str; 2],
        from: &str,
        to: &str,
    ) -> Result<Content, CliError> {
        let mut options = form.options().to_vec();
        options.extend(prefixes);
        if form != Form::Patch {
            return self.diff_with(&options, from, to, &[]).await.map(Content::Text);
        }
        let path = self.folder.path().join("patch");
        // A patch that was returned before keeps its content.
        let _ = fs::remove_file(&path);
        let to_file = format!("--output={}", path.display());
        options.push(&to_file);
        self.diff_with(&options, from, to, &[]).await?;
        File::open(path).map(Content::File).map_err(|error| CliError::cannot("read the patch", error))
    }

    /// Compares two trees as [`Self::content`] does. The paths begin with `folder`.
    async fn content_in_folder(
        &self,
        form: Form,
        prefixes: [&str; 2],
        trees: [&str; 2],
        folder: &str,
    ) -> Result<Content, CliError> {
        for (tree, reference) in trees.into_iter().zip(IN_FOLDER) {
            let tree = self.tree_of_reference(tree).await?;
            workspace::commit_in_folder(self.repository.command(), reference, (folder, &tree))
                .map_err(|error| CliError::cannot("compare the folder", error))?;
        }
        self.content(form, prefixes, IN_FOLDER[0], IN_FOLDER[1]).await
    }

    async fn diff(
        &self,
        from: &str,
        to: &str,
        paths: &[String],
        folder: Option<&str>,
    ) -> Result<Text, CliError> {
        // The prefixes do not depend on the user's git configuration.
        let folder = folder.map(|folder| format!("{folder}/")).unwrap_or_default();
        let prefixes = [format!("--src-prefix=a/{folder}"), format!("--dst-prefix=b/{folder}")];
        self.diff_with(&prefixes.each_ref().map(String::as_str), from, to, paths).await
    }

    async fn diff_with(
        &self,
        options: &[&str],
        from: &str,
        to: &str,
        paths: &[String],
    ) -> Result<Text, CliError> {
        let mut arguments =
            vec!["--literal-pathspecs", "diff", "--no-ext-diff", "--no-textconv", "--no-color"];
        arguments.extend(options);
        arguments.extend(["--ignore-submodules=none", from, to, "--"]);
        arguments.extend(paths.iter().map(String::as_str));
        bounded(&self.repository, &arguments, MAX_OUTPUT).await
    }

    /// Returns the id of the tree of a commit.
    pub(super) async fn tree_of_reference(&self, name: &str) -> Result<ObjectId, CliError> {
        let name = format!("{name}^{{tree}}");
        let found = self.repository.git(&["rev-parse", "--verify", "--end-of-options", &name]).await?;
        ObjectId::parse(&String::from_utf8_lossy(&found.stdout))
            .ok_or_else(|| CliError::failed(format!("git cannot find {name}: {}", stderr_tail(&found))))
    }

    /// Returns the commit; without one, the id of the empty tree.
    pub(super) async fn tree_of(&self, commit: Option<&ObjectId>) -> Result<ObjectId, CliError> {
        if let Some(commit) = commit {
            return Ok(commit.clone());
        }
        let written = bounded(&self.repository, &["hash-object", "-t", "tree", "-w", "--stdin"], 100).await?;
        ObjectId::parse(&String::from_utf8_lossy(&written.bytes))
            .ok_or_else(|| CliError::failed("git cannot create an empty tree"))
    }
}

pub(super) async fn expect(repository: &Repository<'_>, arguments: &[&str]) -> Result<(), CliError> {
    let done = repository.git(arguments).await?;
    if done.status.success() {
        return Ok(());
    }
    Err(CliError::failed(format!("`git {}` failed: {}", arguments[0], stderr_tail(&done))))
}

/// Returns at most `most` bytes of a git command's output.
pub(super) async fn bounded(
    repository: &Repository<'_>,
    arguments: &[&str],
    most: usize,
) -> Result<Text, CliError> {
    let mut command = repository.command();
    // A replace reference of the user would make git show other content than the object has.
    command.env("GIT_NO_REPLACE_OBJECTS", "1").args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut command = tokio::process::Command::from(command);
    let mut child = command.kill_on_drop(true).spawn().map_err(spawn_failed)?;
    let (output, stderr) = (child.stdout.take(), child.stderr.take());
    let read = async {
        let (output, stderr) = tokio::join!(read_at_most(output, most + 1), read_at_most(stderr, 2000));
        let cut = output.len() > most;
        if cut {
            let _ = child.start_kill();
        }
        child.wait().await.map(|status| (status.success() || cut, cut, output, stderr))
    };
    let word = arguments.iter().find(|word| !word.starts_with('-')).unwrap_or(&"git");
    let late = |_| CliError::failed(format!("`git {word}` timed out"));
    let (done, cut, mut bytes, stderr) =
        tokio::time::timeout(STEP_TIMEOUT, read).await.map_err(late)?.map_err(spawn_failed)?;
    bytes.truncate(most);
    if done {
        return Ok(Text { bytes, cut });
    }
    let stderr = crate::cli::output::inert(String::from_utf8_lossy(&stderr).trim());
    Err(CliError::failed(format!("`git {word}` failed: {stderr}")))
}

/// Reads at most `most` bytes. The rest of standard error is read and dropped, so that git does not block on
/// a full pipe.
async fn read_at_most(from: Option<impl AsyncRead + Unpin>, most: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        let _ = (&mut from).take(most as u64).read_to_end(&mut bytes).await;
        if bytes.len() < most {
            let _ = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::super::patch_tests::host;
    use super::*;

    /// The workspace contains the committed lines, but inside a comment.
    #[tokio::test]
    async fn diffs_a_commit_that_the_workspace_disguises() {
        let home = tempfile::tempdir().expect("folder");
        let host = host(home.path());
        let scratch = Scratch::create(&host, None, None).await.expect("a repository");
        for (name, text) in [
            ("refs/heads/base", "start\n"),
            (HISTORY, "start\nrun evil\n"),
            (FILES, "start\n: <<'END'\nrun evil\nEND\n"),
        ] {
            let mut child = scratch.repository.command();
            let mut child =
                child.args(["fast-import", "--quiet"]).stdin(Stdio::piped()).spawn().expect("git");
            let commit = format!("commit {name}\ncommitter a <> 0 +0000\ndata 0\nM 644 inline run\n");
            let text = format!("{commit}data {}\n{text}\n", text.len());
            io::Write::write_all(&mut child.stdin.take().expect("input"), text.as_bytes()).expect("written");
            assert!(child.wait().expect("git").success(), "{name}");
        }
        let tip = scratch.repository.resolve(HISTORY).await.expect("git").expect("a commit");
        let diff = scratch.diff("refs/heads/base", FILES, &[], None).await.expect("a diff");
        assert!(String::from_utf8_lossy(&diff.bytes).contains("+END"));
        let committed = scratch.committed("refs/heads/base", &tip, None).await.expect("a diff");
        assert!(String::from_utf8_lossy(&committed.bytes).ends_with(" start\n+run evil\n"));
    }
}
