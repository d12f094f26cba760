//! A temporary repository in which a bottle's work is compared with the user's commit.
//!
//! ```text
//!  the bottle's HEAD ── fetch, objects checked ──► ┌─────────┐
//!  the user's objects ── a view, only read ─────► │ scratch │ ──► diff by the host's git
//!  the workspace's files ── the guest's archive ──►└─────────┘
//! ```
//! The bottle cannot influence the comparison. The bottle's git configuration is not copied, its attributes are
//! overridden, and its index and replace references are not used. Dropping [`Scratch`] deletes the temporary
//! repository.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use bottle_channel::Channel;
use bottle_host::{Host, disk, git_user};
use bottle_protocol::session::guest::{CopyOut, GuestRequest};
use bottle_repository::changes::Started;
use bottle_repository::changes::Version as Entry;
use bottle_repository::git::Output;
pub use bottle_repository::git::Text;
use bottle_repository::ignore_rules::IGNORE_FILE;
use bottle_repository::ignored::{Ignored, MAX_FILE};
use bottle_repository::{FastImport, Store, StoreKind, ignore_rules};

use super::host::{Repository, git_failed, program, store_failed};
use super::start::{Began, Committed, Purpose};
use super::transport::{self, Source};
use super::workspace::{self, Baseline, LeftOut};
use super::{ObjectId, Root};
use crate::connect::{open_guest, receive_failed};
use crate::failure::Failure;

/// The reference for the files of the bottle's workspace.
pub(super) const FILES: &str = "refs/bottle/workspace";

/// The references for the old and the new versions of the files that differ.
const CHANGED: [&str; 2] = ["refs/bottle/changed-from", "refs/bottle/changed-to"];

/// The reference for the files of the first bottle's workspace, when two bottles are compared with each other.
const FIRST_FILES: &str = "refs/bottle/first-workspace";

/// The references for two compared trees, after each was moved into a directory.
const IN_DIRECTORY: [&str; 2] = ["refs/bottle/from-directory", "refs/bottle/to-directory"];

/// The maximum number of bytes read from a diff, and from a list of files. A longer diff is truncated. A longer list is
/// an error.
const MAX_OUTPUT: usize = 16 << 20;
pub(super) const MAX_LISTING: usize = 256 << 20;

/// The maximum number of ignore files read from one commit. The rules of further files are not applied.
const MAX_IGNORE_FILES: usize = 200;

/// The maximum number of paths in the arguments of one `git diff`, and the maximum total size of these paths in bytes.
/// Beyond one of these limits, the diff covers all paths.
const MAX_PATHS: usize = 500;
const MAX_PATH_BYTES: usize = 64 << 10;

/// A temporary git directory in which a bottle's work is compared. See the diagram at the top of this file.
pub struct Scratch<'a> {
    pub(super) host: &'a Host,
    /// Threads that import or read files hold clones of this value, so the git directory exists until these threads
    /// end.
    pub(super) store: Store,
}

/// A fetched commit of a bottle.
#[derive(Debug, Clone)]
pub struct Tip {
    /// The commit.
    pub commit: ObjectId,
    /// The shallow commits: commits without their parents, because the bottle has a shallow copy of the history.
    shallow: Vec<ObjectId>,
}

/// The base of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    /// The commit. `None` if the base is an empty tree.
    pub commit: Option<ObjectId>,
    /// The tree that is compared with the workspace: the commit's whole tree, or a directory in it.
    pub(super) tree: ObjectId,
    /// The path of the directory in the commit, with a slash at the end. Empty for the whole tree.
    pub(super) prefix: String,
    /// Whether the base is a commit of the user's repository.
    pub is_own: bool,
}

impl Base {
    /// Returns the base commit, whose ignore rules apply, and the path of the workspace in it. `None` if the base is
    /// not a commit of the user.
    pub(super) fn rules(&self) -> Option<(&ObjectId, &str)> {
        self.commit.as_ref().filter(|_| self.is_own).map(|commit| (commit, self.prefix.as_str()))
    }
}

/// The trees from which an import gets its known files and its ignore rules.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    /// Trees or commits whose files are not ignored. A file that cannot be imported gets its version from the first of
    /// these trees that contains it.
    pub(super) trees: [Option<&'a ObjectId>; 2],
    /// A commit or tree of the user, whose ignore rules apply, and the path of the workspace in this commit or tree.
    pub(super) rules: Option<(&'a ObjectId, &'a str)>,
    /// The user's repository, whose `info/exclude` file applies together with `rules`.
    pub(super) own: Option<&'a Repository>,
    /// The files at the start of the bottle.
    pub(super) began: Option<&'a Began>,
}

/// The form of a comparison's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A unified diff for reading, of limited length.
    Text,
    /// A complete patch for `git apply`.
    Patch,
    /// A patch in the format of [`Self::Patch`], of limited length.
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
pub enum Content {
    /// A text of bounded size.
    Text(Text),
    /// A complete patch, for [`Form::Patch`].
    File(File),
}

impl Content {
    /// Returns the text, and whether it was truncated. For a complete patch, which is in a file, the returned text is
    /// empty.
    pub(super) fn into_text(self) -> (String, bool) {
        match self {
            Self::Text(Text { bytes, cut }) => (String::from_utf8_lossy(&bytes).into_owned(), cut),
            Self::File(_) => (String::new(), true),
        }
    }
}

/// The result of comparing a workspace with its base.
pub struct Compared {
    /// The changes from the base to the workspace.
    pub diff: Content,
    /// A unified diff from the base to the bottle's last commit, limited to files that differ between this
    /// commit and the workspace.
    pub committed: Text,
    /// The files that were not compared.
    pub left_out: LeftOut,
}

impl<'a> Scratch<'a> {
    /// Creates an empty git directory of the same kind as the user's repository `own`. Without `own`, the git directory
    /// has the object format of the commit `like`.
    ///
    /// # Errors
    /// When the git directory cannot be created, or git is not installed.
    pub fn create(
        host: &'a Host,
        own: Option<&Repository>,
        like: Option<&ObjectId>,
    ) -> Result<Self, Failure> {
        let kind = match (own, like) {
            (Some(own), _) => own.kind(),
            (None, Some(like)) => StoreKind { format: like.format(), partial: false },
            (None, None) => StoreKind::default(),
        };
        Ok(Self { host, store: new_store(host, kind)? })
    }

    /// Fetches the bottle's `HEAD`. `None` if the bottle's repository has no commits. Called before [`Self::lend`], so
    /// that the fetch uses no objects of the user except the objects that the bottle received at its start.
    ///
    /// # Errors
    /// When the fetch fails. The bottle's git may be the cause.
    pub async fn fetch(&self, bottle: (&Channel, &Root)) -> Result<Option<Tip>, Failure> {
        self.fetch_reference(bottle, "HEAD").await
    }

    /// Fetches a branch of the bottle, in the same way as [`Self::fetch`].
    ///
    /// # Errors
    /// When the branch's name is invalid, when the bottle has no branch of this name, or when the fetch fails.
    pub async fn fetch_branch(
        &self,
        (channel, root): (&Channel, &Root),
        branch: &str,
    ) -> Result<Tip, Failure> {
        let name = bottle_repository::refs::branch_reference(branch).ok_or_else(|| {
            Failure::usage(format!("{branch:?} is not a valid branch name"))
                .about("--branch")
                .hint("write it as `git branch` in the bottle shows it")
        })?;
        self.fetch_reference((channel, root), &name).await?.ok_or_else(|| {
            let directory = if root.is_directory() { format!(" -C {}", root.path()) } else { String::new() };
            Failure::state(format!("{}there is no branch {branch:?} in the bottle", root.label()))
                .about("--branch")
                .hint(format!("`bottle exec {} -- git{directory} branch` lists its branches", root.slug))
        })
    }

    async fn fetch_reference(
        &self,
        (channel, root): (&Channel, &Root),
        reference: &str,
    ) -> Result<Option<Tip>, Failure> {
        // Each bottle sends its objects into a separate git directory. This directory contains only the objects that
        // the bottle received at its start.
        let incoming = new_store(self.host, self.store.kind())?;
        let given = root.given.as_ref();
        let objects = given.map(|given| given.open()).transpose()?;
        let has_objects = objects.is_some();
        if let Some(objects) = objects {
            incoming.borrow(objects).map_err(store_failed)?;
        }
        let mut have = given.and_then(|given| given.commit.as_ref());
        if let Some(commit) = have
            && incoming.commit(commit.as_str()).await.map_err(store_failed)?.is_none()
        {
            have = None;
        }
        let source = Source { channel, root, reference };
        let Some(fetched) = transport::fetch(&incoming, source, have).await? else { return Ok(None) };
        self.store.take_packs(&incoming).map_err(store_failed)?;
        if has_objects && let Some(given) = given {
            self.store.borrow(given.open()?).map_err(store_failed)?;
        }
        self.store.set_shallow(&fetched.shallow).map_err(store_failed)?;
        Ok(Some(Tip { commit: fetched.tip, shallow: fetched.shallow }))
    }

    /// Lets git in the temporary repository read the objects of the user's repository.
    ///
    /// # Errors
    /// When the objects cannot be read.
    pub fn lend(&self, own: &Repository, tip: Option<&Tip>) -> Result<(), Failure> {
        own.lend(&self.store, tip.map(|tip| &tip.shallow[..]).unwrap_or_default())
    }

    /// Returns the base of the comparison: the merge base of the bottle's last commit and the user's `head`. If both
    /// have no common history, and the workspace was copied from the repository `copied`, the base is the user's
    /// `head`. Otherwise the base is the bottle's last commit.
    ///
    /// # Errors
    /// Returns an error if git is not installed.
    pub async fn base(
        &self,
        head: Option<&ObjectId>,
        tip: Option<&ObjectId>,
        copied: Option<&Repository>,
    ) -> Result<Base, Failure> {
        if let (Some(head), Some(tip)) = (head, tip) {
            let found = self.git(&["merge-base", head.as_str(), tip.as_str()]).await?;
            if let Some(commit) = ObjectId::from_bytes(&found.stdout.bytes) {
                let (tree, prefix) = (commit.clone(), String::new());
                return Ok(Base { commit: Some(commit), tree, prefix, is_own: true });
            }
        }
        let (Some(head), Some(own)) = (head, copied) else {
            let tree = self.tree_of(tip).await?;
            return Ok(Base { commit: tip.cloned(), tree, prefix: String::new(), is_own: false });
        };
        // Without a common history, the workspace is treated as a copy of the user's directory.
        let prefix = own.prefix()?;
        let tree = match prefix.as_str() {
            "" => head.clone(),
            directory => match self.tree_at(head, directory).await? {
                Some(tree) => tree,
                None => self.tree_of(None).await?,
            },
        };
        Ok(Base { commit: Some(head.clone()), tree, prefix, is_own: true })
    }

    /// Returns the base for files that no commit of the user contains.
    ///
    /// # Errors
    /// Returns an error if git fails.
    pub(super) async fn empty_base(&self) -> Result<Base, Failure> {
        let tree = self.tree_of(None).await?;
        Ok(Base { commit: None, tree, prefix: String::new(), is_own: false })
    }

    /// Returns the tree of a directory in a commit. `None` if the commit does not contain the directory.
    async fn tree_at(&self, commit: &ObjectId, directory: &str) -> Result<Option<ObjectId>, Failure> {
        let name = format!("{}:{}", commit.as_str(), directory.trim_end_matches('/'));
        let Some(found) = self.object(&name).await? else { return Ok(None) };
        // This lookup returns `None` if `found` is a file.
        self.object(&format!("{found}^{{tree}}")).await
    }

    /// Compares the imported workspace with the base. With `directory`, the paths of the result begin with this
    /// directory. Otherwise the paths are the same as in the user's repository.
    ///
    /// # Errors
    /// Returns an error if git fails.
    pub(super) async fn compare(
        &self,
        own: Option<&Repository>,
        (base, began): (&Base, &Began),
        tip: Option<&ObjectId>,
        (form, directory): (Form, Option<&str>),
        left_out: LeftOut,
    ) -> Result<Compared, Failure> {
        let work =
            self.committed_work(began, own, base, &self.listed(&base.tree).await?, Purpose::Shown).await?;
        let committed = match tip {
            Some(tip) => self.committed(own, (base, began), tip, directory).await?,
            None => Text::default(),
        };
        let prefix = if directory.is_none() { base.prefix.as_str() } else { "" };
        self.write_changed(prefix, began, &work)?;
        let prefixes = ["--src-prefix=a/", "--dst-prefix=b/"];
        let diff = match directory {
            Some(directory) => self.content_in_directory(form, prefixes, CHANGED, directory).await?,
            None => self.content(form, prefixes, CHANGED[0], CHANGED[1]).await?,
        };
        Ok(Compared { diff, committed, left_out })
    }

    /// Points the references [`CHANGED`] at commits of the files that differ, below the directory `prefix`. Files for
    /// which git's conversion is not possible are compared in the version of the working tree.
    fn write_changed(&self, prefix: &str, began: &Began, work: &Committed) -> Result<(), Failure> {
        let write = || {
            for (side, reference) in CHANGED.into_iter().enumerate() {
                let mut import = FastImport::start(self.store.git().command(), reference)?;
                let path = |path: &[u8]| [prefix.as_bytes(), path].concat();
                for (name, before, after) in &work.changes {
                    let version = if side == 0 { before } else { after };
                    version.iter().try_for_each(|version| import.link(&path(name), version))?;
                }
                for (name, before, raw, _) in &work.unconverted {
                    let start = began.start.files.get(name).and_then(|started| started.raw.as_ref());
                    let version = if side == 0 { start.or(before.as_ref()) } else { Some(raw) };
                    version.iter().try_for_each(|version| import.link(&path(name), version))?;
                }
                import.end()?;
            }
            Ok(())
        };
        write().map_err(|error: std::io::Error| Failure::cannot("compare the files", error))
    }

    /// Imports the workspace. If the base is a commit of the user, the ignore rules of the base apply. If the user has
    /// no commit, the ignore rules of the files at the start of the bottle apply.
    pub(super) async fn import_beside(
        &self,
        bottle: (&Channel, &Root),
        own: Option<&Repository>,
        (base, began): (&Base, &Began),
        tip: Option<&ObjectId>,
    ) -> Result<LeftOut, Failure> {
        let rules = base.rules().or_else(|| began.rules());
        let known = Known { trees: [Some(&base.tree), tip], rules, own, began: Some(began) };
        self.import(bottle, FILES, known).await
    }

    /// Imports the workspaces of two bottles, and compares the first workspace with the second. Files that the user's
    /// commit `head` or a bottle's last commit tracks are not ignored.
    ///
    /// # Errors
    /// Returns an error if an import or git fails.
    pub async fn compare_two(
        &self,
        bottles: [(&Channel, &Root); 2],
        own: Option<&Repository>,
        head: Option<&ObjectId>,
        (form, directory): (Form, Option<&str>),
    ) -> Result<(Content, [LeftOut; 2]), Failure> {
        let known = |tip| Known { trees: [head, tip], rules: head.map(|head| (head, "")), own, began: None };
        let [first, second] = bottles;
        // If a bottle has no git repository, only the files of its workspace are compared.
        let tips = [self.fetch(first).await.ok().flatten(), self.fetch(second).await.ok().flatten()];
        let [first_tip, second_tip] = tips.each_ref().map(|tip| tip.as_ref().map(|tip| &tip.commit));
        if let Some(own) = own {
            let all = tips.iter().flatten().flat_map(|tip| tip.shallow.iter().cloned());
            own.lend(&self.store, &all.collect::<Vec<_>>())?;
        }
        let left_out_of_first = self.import(first, FIRST_FILES, known(first_tip)).await?;
        let left_out_of_second = self.import(second, FILES, known(second_tip)).await?;
        let prefixes =
            [format!("--src-prefix={}/", first.1.slug), format!("--dst-prefix={}/", second.1.slug)];
        let prefixes = prefixes.each_ref().map(String::as_str);
        let diff = match directory {
            Some(directory) => {
                self.content_in_directory(form, prefixes, [FIRST_FILES, FILES], directory).await?
            }
            None => self.content(form, prefixes, FIRST_FILES, FILES).await?,
        };
        Ok((diff, [left_out_of_first, left_out_of_second]))
    }

    /// Imports the workspace of a bottle as a commit, and points `reference` at this commit.
    pub(super) async fn import(
        &self,
        (channel, root): (&Channel, &Root),
        reference: &'static str,
        known: Known<'_>,
    ) -> Result<LeftOut, Failure> {
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
        let not_given = match (known.began, known.own) {
            (Some(began), _) => {
                let is_not_given = |started: &&Started| !started.is_given && started.raw.is_some();
                let files = began.start.files.iter().filter(|(_, started)| is_not_given(started));
                files.map(|(path, _)| path.clone()).collect()
            }
            (None, Some(own)) => own.left_out_by_sparse_checkout(&tracked)?.into_iter().collect(),
            (None, None) => HashSet::new(),
        };
        let mut pointers = HashMap::new();
        if let Some(began) = known.began {
            let raw = began.start.files.iter().filter_map(|(path, file)| Some((path, file.raw.as_ref()?)));
            tracked.extend(raw.map(|(path, raw)| (path.clone(), raw.clone())));
            pointers.clone_from(&began.pointers);
        }
        let nested = known.began.map(Began::nested).unwrap_or_default();
        let scratch = self.store.path().to_owned();
        let request = CopyOut { path: root.path() };
        let stream = open_guest(channel, GuestRequest::CopyOut(request)).await?;
        let git = self.store.git();
        let take = move |archive: &mut dyn Read| {
            workspace::import(
                &git,
                reference,
                Baseline { tracked, not_given, nested, pointers, scratch, ignored },
                archive,
            )
        };
        let unread = |error| Failure::cannot(format!("read {root}"), error);
        bottle_archive::receive(stream, take).await.map_err(|error| receive_failed(error, &root.slug, unread))
    }

    /// Reads the ignore rules of the files `tracked`, of the repository's `info/exclude`, and of the user's own ignore
    /// file.
    async fn rules(
        &self,
        tracked: &HashMap<Vec<u8>, Entry>,
        own: Option<&Repository>,
        ignored: &mut Ignored,
    ) -> Result<(), Failure> {
        let mut read = 0;
        for (path, (mode, object)) in tracked {
            let Ok(path) = std::str::from_utf8(path) else { continue };
            let path = Path::new(path);
            if path.file_name().is_none_or(|name| name != IGNORE_FILE)
                || mode == "120000"
                || read == MAX_IGNORE_FILES
            {
                continue;
            }
            read += 1;
            let text = self.read(&["cat-file", "blob", object], MAX_FILE).await?;
            let directory = path.parent().unwrap_or(Path::new(""));
            ignored.own.add(directory, &String::from_utf8_lossy(&text.bytes));
        }
        let exclude = own.and_then(Repository::exclude);
        exclude.into_iter().for_each(|text| ignored.own.add(Path::new(""), &text));
        // The rules of the user's own ignore file have the lowest precedence. If this file cannot be read, no rules are
        // added, and a diff shows more files.
        let users = git_user::ignore_file(self.host).and_then(|path| ignore_rules::read_users(&path).ok());
        users.into_iter().for_each(|text| ignored.own.add(Path::new(""), &String::from_utf8_lossy(&text)));
        Ok(())
    }

    /// Returns all files of a tree or commit.
    pub(super) async fn listed(&self, tree: &ObjectId) -> Result<HashMap<Vec<u8>, Entry>, Failure> {
        let arguments = ["ls-tree", "-r", "-z", "--full-tree", tree.as_str()];
        let listed = self.read(&arguments, MAX_LISTING).await?;
        if listed.cut {
            return Err(Failure::failed("cannot compare: a commit has too many files"));
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

    /// Compares the base with the bottle's last commit, because a pull fetches this commit. Covers only the files that
    /// differ between this commit and the workspace. Lines that the workspace's diff also contains are included,
    /// because the same lines can have another meaning in another order or inside a comment.
    async fn committed(
        &self,
        own: Option<&Repository>,
        (base, began): (&Base, &Began),
        tip: &ObjectId,
        directory: Option<&str>,
    ) -> Result<Text, Failure> {
        let since = self.changed(base.tree.as_str(), tip.as_str()).await?;
        if since.is_empty() {
            return Ok(Text::default());
        }
        let work = self.committed_work(began, own, base, &self.listed(tip).await?, Purpose::Shown).await?;
        let changed = work.changes.into_iter().map(|(path, ..)| path);
        let paths: Vec<Vec<u8>> =
            changed.chain(work.unconverted.into_iter().map(|(path, ..)| path)).collect();
        self.committed_at(base.tree.as_str(), tip, (&since, paths), directory).await
    }

    /// Compares the base with the bottle's last commit, for the paths that are in both lists: `since` and `paths`.
    async fn committed_at(
        &self,
        from: &str,
        tip: &ObjectId,
        (since, mut paths): (&[Vec<u8>], Vec<Vec<u8>>),
        directory: Option<&str>,
    ) -> Result<Text, Failure> {
        paths.retain(|path| since.binary_search(path).is_ok());
        if paths.is_empty() {
            return Ok(Text::default());
        }
        let few = paths.len() <= MAX_PATHS && paths.iter().map(Vec::len).sum::<usize>() <= MAX_PATH_BYTES;
        // If a path is not UTF-8, the diff covers all paths.
        let paths = paths.into_iter().map(String::from_utf8).collect::<Result<Vec<_>, _>>();
        let paths = paths.ok().filter(|_| few).unwrap_or_default();
        self.diff(from, tip.as_str(), &paths, directory).await
    }

    /// Returns the paths at which two trees differ, sorted.
    pub(super) async fn changed(&self, from: &str, to: &str) -> Result<Vec<Vec<u8>>, Failure> {
        let arguments = ["diff", "--name-only", "-z", "--no-renames", "--no-ext-diff", from, to, "--"];
        let listed = self.read(&arguments, MAX_LISTING).await?;
        // A path that is missing in a truncated list would be changed without being shown to the user.
        if listed.cut {
            return Err(Failure::failed("cannot compare: too many files differ"));
        }
        let paths = listed.bytes.split(|byte| *byte == 0).filter(|path| !path.is_empty());
        let mut paths: Vec<Vec<u8>> = paths.map(<[u8]>::to_vec).collect();
        paths.sort_unstable();
        Ok(paths)
    }

    /// Returns the old and new path of each file that was renamed.
    pub(super) async fn renamed(&self, from: &str, to: &str) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Failure> {
        let arguments = [
            "diff",
            "--name-status",
            "-z",
            "--find-renames",
            "--diff-filter=R",
            "--no-ext-diff",
            from,
            to,
            "--",
        ];
        let listed = self.read(&arguments, MAX_OUTPUT).await?;
        let fields: Vec<&[u8]> = listed.bytes.split(|byte| *byte == 0).collect();
        // Each renamed file has three fields: its similarity, its old path and its new path.
        let files = fields.chunks_exact(3).map(|file| (file[1].to_vec(), file[2].to_vec()));
        Ok(files.collect())
    }

    /// Compares two trees, and returns the result in this form.
    pub(super) async fn content(
        &self,
        form: Form,
        prefixes: [&str; 2],
        from: &str,
        to: &str,
    ) -> Result<Content, Failure> {
        let mut options = form.options().to_vec();
        options.extend(prefixes);
        if form != Form::Patch {
            return self.diff_with(&options, from, to, &[]).await.map(Content::Text);
        }
        let path = self.store.path().join("patch");
        // An earlier patch file is removed and not overwritten, because a caller may still read it.
        let _ = fs::remove_file(&path);
        let to_file = format!("--output={}", path.display());
        options.push(&to_file);
        self.diff_with(&options, from, to, &[]).await?;
        File::open(path).map(Content::File).map_err(|error| Failure::cannot("read the patch", error))
    }

    /// Compares two trees as [`Self::content`] does. The paths begin with `directory`.
    async fn content_in_directory(
        &self,
        form: Form,
        prefixes: [&str; 2],
        trees: [&str; 2],
        directory: &str,
    ) -> Result<Content, Failure> {
        for (tree, reference) in trees.into_iter().zip(IN_DIRECTORY) {
            let tree = self.tree_of_reference(tree).await?;
            workspace::commit_in_directory(self.store.git().command(), reference, (directory, &tree))
                .map_err(|error| Failure::cannot("compare the directory", error))?;
        }
        self.content(form, prefixes, IN_DIRECTORY[0], IN_DIRECTORY[1]).await
    }

    async fn diff(
        &self,
        from: &str,
        to: &str,
        paths: &[String],
        directory: Option<&str>,
    ) -> Result<Text, Failure> {
        // The prefixes are set, so that they do not depend on the user's git configuration.
        let directory = directory.map(|directory| format!("{directory}/")).unwrap_or_default();
        let prefixes = [format!("--src-prefix=a/{directory}"), format!("--dst-prefix=b/{directory}")];
        self.diff_with(&prefixes.each_ref().map(String::as_str), from, to, paths).await
    }

    async fn diff_with(
        &self,
        options: &[&str],
        from: &str,
        to: &str,
        paths: &[String],
    ) -> Result<Text, Failure> {
        let mut arguments =
            vec!["--literal-pathspecs", "diff", "--no-ext-diff", "--no-textconv", "--no-color"];
        arguments.extend(options);
        arguments.extend(["--ignore-submodules=none", from, to, "--"]);
        arguments.extend(paths.iter().map(String::as_str));
        self.read(&arguments, MAX_OUTPUT).await
    }

    /// Returns the id of the tree of a commit.
    pub(super) async fn tree_of_reference(&self, name: &str) -> Result<ObjectId, Failure> {
        let found = self.object(&format!("{name}^{{tree}}")).await?;
        found.ok_or_else(|| Failure::failed(format!("git cannot find the files of {name}")))
    }

    /// Returns the commit. Without a commit, returns the id of the empty tree.
    pub(super) async fn tree_of(&self, commit: Option<&ObjectId>) -> Result<ObjectId, Failure> {
        if let Some(commit) = commit {
            return Ok(commit.clone());
        }
        let written = self.read(&["hash-object", "-t", "tree", "-w", "--stdin"], 100).await?;
        ObjectId::from_bytes(&written.bytes).ok_or_else(|| Failure::failed("git cannot create an empty tree"))
    }

    /// Returns the object to which a revision expression resolves. `None` if it resolves to no object.
    pub(super) async fn object(&self, expression: &str) -> Result<Option<ObjectId>, Failure> {
        self.store.object(expression).await.map_err(store_failed)
    }

    /// Returns the commit to which a name resolves. `None` if it resolves to no commit.
    pub(super) async fn commit_of(&self, name: &str) -> Result<Option<ObjectId>, Failure> {
        self.store.commit(name).await.map_err(store_failed)
    }

    /// Runs git until it exits, and accepts any exit code.
    pub(super) async fn git(&self, arguments: &[&str]) -> Result<Output, Failure> {
        self.store.git().run(arguments).await.map_err(git_failed)
    }

    /// Runs a command of git that must succeed.
    pub(super) async fn expect(&self, arguments: &[&str]) -> Result<Output, Failure> {
        self.store.git().expect(arguments).await.map_err(git_failed)
    }

    /// Returns at most `most` bytes of the output of a command of git.
    pub(super) async fn read(&self, arguments: &[&str], most: usize) -> Result<Text, Failure> {
        self.store.git().read(arguments, most).await.map_err(git_failed)
    }
}

/// Creates an empty temporary git directory.
fn new_store(host: &Host, kind: StoreKind) -> Result<Store, Failure> {
    let program = program(host)?;
    let directory = host.temporary("git-").map_err(disk::plain).map_err(|error| {
        let hint = disk::hint(&error);
        Failure::cannot("create a temporary git directory", error).hint(hint)
    })?;
    Store::create(&program, directory, kind).map_err(store_failed)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::process::Stdio;

    use super::super::patch_tests::{commit, host};
    use super::*;

    /// An agent could try to hide a changed file after many long paths, which come first in a sorted list.
    #[tokio::test]
    async fn no_changed_file_is_left_out_of_a_long_list() {
        let home = tempfile::tempdir().expect("a directory");
        let host = host(home.path());
        let scratch = Scratch::create(&host, None, None).expect("a repository");
        let long = "!".repeat(4000);
        let file = |path: String| (path, ("100644", b"x".to_vec()));
        let mut tree: std::collections::BTreeMap<_, _> =
            (0..MAX_OUTPUT / long.len() + 10).map(|at| file(format!("{long}{at}"))).collect();
        tree.extend([file(".envrc".to_owned())]);
        commit(&scratch, FILES, &tree);
        let empty = scratch.tree_of(None).await.expect("a tree");
        let changed = scratch.changed(empty.as_str(), FILES).await.expect("listed");
        assert_eq!(changed.len(), tree.len());
        assert!(changed.contains(&b".envrc".to_vec()));
    }

    /// The workspace contains the committed lines, but inside a comment.
    #[tokio::test]
    async fn diffs_a_commit_that_the_workspace_disguises() {
        let home = tempfile::tempdir().expect("directory");
        let host = host(home.path());
        let scratch = Scratch::create(&host, None, None).expect("a repository");
        for (name, text) in [
            ("refs/heads/base", "start\n"),
            ("refs/bottle/history", "start\nrun evil\n"),
            (FILES, "start\n: <<'END'\nrun evil\nEND\n"),
        ] {
            let mut child = scratch.store.git().command();
            let mut child =
                child.args(["fast-import", "--quiet"]).stdin(Stdio::piped()).spawn().expect("git");
            let commit = format!("commit {name}\ncommitter a <> 0 +0000\ndata 0\nM 644 inline run\n");
            let text = format!("{commit}data {}\n{text}\n", text.len());
            io::Write::write_all(&mut child.stdin.take().expect("input"), text.as_bytes()).expect("written");
            assert!(child.wait().expect("git").success(), "{name}");
        }
        let tip = scratch.commit_of("refs/bottle/history").await.expect("git").expect("a commit");
        let diff = scratch.diff("refs/heads/base", FILES, &[], None).await.expect("a diff");
        assert!(String::from_utf8_lossy(&diff.bytes).contains("+END"));
        let paths = vec![b"run".to_vec()];
        let committed = scratch.committed_at("refs/heads/base", &tip, (&paths, paths.clone()), None).await;
        let committed = committed.expect("a diff");
        assert!(String::from_utf8_lossy(&committed.bytes).ends_with(" start\n+run evil\n"));
    }
}
