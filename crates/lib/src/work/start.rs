//! The files at the start of a bottle, and the form in which git would commit the files of its workspace.
//!
//! ```text
//!  record of the start, or the base ──► Start: each file as it was, and as git would commit it
//!  attributes, settings ──► Conversions ──► what git would commit of a file, without its programs
//! ```

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bottle_host::git_user;
use bottle_repository::attributes::{ATTRIBUTES_FILE, Attributes, MAX_ATTRIBUTES, TooManyAttributes};
use bottle_repository::changes::{After, Difference, Files, LINK, SUBMODULE, Start, Started, Version};
use bottle_repository::conversion::{Conversion, KEYS, MAX_POINTER, Pointer, Settings, Unconverted};
use bottle_repository::ignore_rules::IGNORE_FILE;
use bottle_repository::{
    Blobs, Directory, FastImport, Git, Given, GivenFile, ObjectId, Origin, ignore_rules,
};

use super::Root;
use super::directory::path_of;
use super::host::{Repository, git_failed, program};
use super::scratch::{Base, FILES, Scratch};
use super::workspace::{LeftOut, MAX_FILE};
use crate::failure::Failure;
use crate::text::one_line;

/// The references for the files at the start, for the contents to which pointers refer, and for the converted files.
const RAW: &str = "refs/bottle/start-raw";
const CONTENTS: &str = "refs/bottle/start-contents";
const CONVERTED: &str = "refs/bottle/converted";

/// The maximum number of attribute files read from a tree. The patterns in these files are bounded too.
const MAX_ATTRIBUTE_FILES: usize = 2_000;

/// The files at the start of a bottle.
#[derive(Debug, Default)]
pub(super) struct Began {
    pub(super) start: Start,
    /// How git would have converted the files at the start.
    conversions: Conversions,
    /// The files whose content is known only as a pointer: a Git LFS pointer, or the hash and size in the record of the
    /// files at the start.
    pub(super) pointers: HashMap<Vec<u8>, Pointer>,
    /// The record of the files that the bottle received at its start.
    given: Option<Given>,
    /// The files of the record that were imported as a pointer instead of their content, each with its pointer.
    behind: HashMap<Vec<u8>, Version>,
    /// The files of the workspace whose content at the start is not kept. The changes of these files are therefore
    /// unknown.
    pub(super) unknown: BTreeSet<Vec<u8>>,
    /// The tree of the files at the start, as they were in the working tree.
    raw: Option<ObjectId>,
}

impl Began {
    /// Whether a record lists all files that the bottle received at its start.
    pub(super) fn is_recorded(&self) -> bool {
        self.given.as_ref().is_some_and(|given| !given.is_partial)
    }

    /// Returns the directories that were nested repositories at the start. No commit of the outer repository contains
    /// the files of these directories.
    pub(super) fn nested(&self) -> HashSet<Vec<u8>> {
        self.given.iter().flat_map(|given| given.nested.iter().cloned()).collect()
    }

    /// Whether the files come from a directory without a repository.
    pub(super) fn is_without_repository(&self) -> bool {
        self.given.as_ref().is_some_and(|given| given.origin == Origin::Directory)
    }

    /// If the user has no commit, returns the tree of the files at the start, whose ignore rules apply, and the path of
    /// the workspace in this tree.
    pub(super) fn rules(&self) -> Option<(&ObjectId, &str)> {
        self.raw
            .as_ref()
            .filter(|_| self.given.as_ref().is_some_and(|given| given.head().is_none()))
            .map(|raw| (raw, ""))
    }

    /// Adds the files whose changes are unknown to `left_out`.
    pub(super) fn name_unknown(&self, left_out: &mut LeftOut, root: &Root) {
        let why = format!(
            "its content at the start is not kept; `bottle cp {}:PATH DIRECTORY` copies it out",
            root.slug
        );
        self.unknown.iter().for_each(|path| left_out.add(path_of(path.clone()), why.clone()));
    }

    /// Whether this version of a file is only a pointer, and the content to which the pointer refers is not available.
    pub(super) fn has_no_content(&self, path: &[u8], version: &Version) -> bool {
        let is_raw = |started: &Started| started.raw.as_ref() == Some(version);
        self.pointers.contains_key(path) && self.start.files.get(path).is_some_and(is_raw)
    }

    /// Replaces pointers in `files` with the contents to which they refer.
    pub(super) fn with_contents(&self, files: &mut Files) {
        for (path, pointer) in &self.behind {
            let raw = self.start.files.get(path).and_then(|started| started.raw.as_ref());
            if let Some(file) = files.get_mut(path).filter(|file| *file == pointer) {
                raw.into_iter().for_each(|raw| file.clone_from(raw));
            }
        }
    }
}

/// How git would convert the files of a tree.
#[derive(Debug, Default)]
pub(super) struct Conversions {
    attributes: Attributes,
    settings: Settings,
    /// The path of the tree, relative to the top of the repository. Ends with a slash unless it is empty.
    prefix: Vec<u8>,
}

/// A file that git would convert.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) path: Vec<u8>,
    /// The file's mode, and the object with the file's bytes in the working tree.
    pub(super) raw: Version,
    /// The file's earlier version.
    pub(super) before: Option<Version>,
}

/// The result of git's conversion of a file for a commit.
#[derive(Debug, Clone)]
pub(super) struct Converted {
    pub(super) version: Version,
    /// The Git LFS pointer, if `version` contains a new pointer instead of the content.
    pub(super) pointer: Option<Pointer>,
    /// Whether the file contains text that the conversion drops from `version`.
    hides_text: bool,
}

/// The path of a file, and the result of its conversion.
type ConvertedFile = (Vec<u8>, Result<Converted, Unconverted>);

/// The purpose of a comparison of the agent's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The work is shown to the user.
    Shown,
    /// The work is committed.
    Committed,
}

/// The work of an agent, as git would commit it.
#[derive(Debug, Default)]
pub(super) struct Committed {
    /// The paths that differ, each with its old and its new version.
    pub(super) changes: Vec<(Vec<u8>, Option<Version>, Option<Version>)>,
    /// Files that cannot be converted as git would, for example because git runs a program for them. Each entry
    /// contains the path, the old version, the version in the working tree, and the reason.
    pub(super) unconverted: Vec<(Vec<u8>, Option<Version>, Version, Unconverted)>,
    /// The contents to which new Git LFS pointers refer. Each entry contains the file's path, the object with the
    /// content, and the pointer.
    pub(super) contents: Vec<(Vec<u8>, String, Pointer)>,
}

impl Conversions {
    pub(super) fn of(&self, path: &[u8]) -> Conversion {
        Conversion::of(&self.attributes.of(&[&self.prefix, path].concat()), &self.settings)
    }
}

impl Scratch<'_> {
    /// Finds the files at the start of the bottle. Without a record, these are the files of the base.
    ///
    /// # Errors
    /// When the record cannot be read, or git fails.
    pub(super) async fn began(
        &self,
        given: Option<Given>,
        own: Option<&Repository>,
        base: &Base,
    ) -> Result<Began, Failure> {
        let head = match &given {
            Some(given) if !given.is_partial => self.tree_of_start(given, base).await?,
            _ => Some(base.tree.clone()),
        };
        let head = match head {
            Some(head) => self.listed(&head).await?,
            None => Files::new(),
        };
        let conversions = match given.as_ref().map(|given| &given.origin) {
            // The files of a directory without a repository are compared byte by byte, without a conversion.
            Some(Origin::Directory) => Conversions::default(),
            _ => self.conversions(own, base, &head).await?,
        };
        let known = self.known(given.as_ref(), own, &head).await?;
        let Pointers { lfs: mut pointers, given: hashes } =
            self.write_start(given.as_ref(), &conversions, &known)?;
        let tree = self.tree_of_reference(RAW).await?;
        let raw = self.listed(&tree).await?;
        let mut start = Start { head, files: HashMap::new() };
        let (mut sources, mut behind) = (Vec::new(), HashMap::new());
        for (path, file) in known {
            let raw = raw.get(&path).cloned();
            let is_behind = hashes.contains_key(&path);
            if let Some(pointer) = raw.as_ref().filter(|_| is_behind) {
                behind.insert(path.clone(), pointer.clone());
            }
            let committed = match (file.blob, &raw) {
                (Some(blob), _) => Some((file.mode, blob)),
                (None, Some(raw)) if is_behind => Some(raw.clone()),
                (None, Some(raw)) if raw.0 == LINK || conversions.of(&path).is_identity() => {
                    Some(raw.clone())
                }
                (None, Some(raw)) => {
                    let before = start.head.get(&path).cloned();
                    sources.push(Source { path: path.clone(), raw: raw.clone(), before });
                    None
                }
                (None, None) => None,
            };
            start.files.insert(path, Started { is_given: file.is_given, committed, raw });
        }
        for (path, converted) in self.convert(sources, &conversions).await? {
            if let (Ok(converted), Some(started)) = (converted, start.files.get_mut(&path)) {
                started.committed = Some(converted.version);
            }
        }
        pointers.extend(hashes);
        Ok(Began { start, conversions, pointers, given, behind, unknown: BTreeSet::new(), raw: Some(tree) })
    }

    /// Finds the contents of the files at the start that were imported as pointers. Considers only files that differ in
    /// the imported workspace, or in the files that an earlier `apply` applied. The content comes from the record, or
    /// from the user's file in `directory` if the user has not changed this file.
    ///
    /// # Errors
    /// When the record cannot be read, or git fails.
    pub(super) async fn find_contents(
        &self,
        began: &mut Began,
        applied: Option<&ObjectId>,
        directory: &Path,
    ) -> Result<(), Failure> {
        let Some(given) = &began.given else { return Ok(()) };
        if began.behind.is_empty() && given.origin != Origin::Directory {
            return Ok(());
        }
        let now = self.listed(&self.tree_of_reference(FILES).await?).await?;
        let applied = match applied {
            Some(applied) => Some(self.listed(applied).await?),
            None => None,
        };
        let is_unknown =
            |(path, started): &(&Vec<u8>, &Started)| started.raw.is_none() && now.contains_key(*path);
        let mut unknown: BTreeSet<Vec<u8>> = match given.origin {
            Origin::Directory => {
                began.start.files.iter().filter(is_unknown).map(|(path, _)| path.clone()).collect()
            }
            Origin::Repository { .. } => BTreeSet::new(),
        };
        let trees = || std::iter::once(&now).chain(&applied);
        let differs =
            |(path, pointer): &(&Vec<u8>, &Version)| trees().any(|tree| tree.get(*path) != Some(*pointer));
        let differ = began.behind.iter().filter(differs);
        let differ: BTreeSet<&Vec<u8>> = differ.map(|(path, _)| path).collect();
        if !differ.is_empty() {
            let write = || {
                // The directory may no longer exist. The record contains contents even then.
                let directory = Directory::open(directory).ok();
                let mut import = FastImport::start(self.store.git().command(), CONTENTS)?;
                for path in differ {
                    let Some(file) = given.files.get(path) else { continue };
                    let place = Path::new(OsStr::from_bytes(path));
                    if let Some(content) = given.content_of(place, file, directory.as_ref())? {
                        import.file(path, &file.mode, content.len() as u64, &mut &content[..])?;
                    } else {
                        unknown.insert(path.clone());
                    }
                }
                import.end()
            };
            write().map_err(|error: io::Error| Failure::cannot("read the files of the start", error))?;
            for (path, version) in self.listed(&self.tree_of_reference(CONTENTS).await?).await? {
                began.pointers.remove(&path);
                if let Some(started) = began.start.files.get_mut(&path) {
                    started.raw = Some(version.clone());
                    started.committed = Some(version);
                }
            }
        }
        began.unknown = unknown;
        Ok(())
    }

    /// Returns the tree that was checked out at the start: the tree of the workspace in the recorded commit. `None` if
    /// the record contains no commit.
    async fn tree_of_start(&self, given: &Given, base: &Base) -> Result<Option<ObjectId>, Failure> {
        let Some(head) = given.head() else { return Ok(None) };
        let name = match base.prefix.trim_end_matches('/') {
            "" => format!("{head}^{{tree}}"),
            directory => format!("{head}:{directory}"),
        };
        // If the user's repository no longer contains the recorded commit, the nearest commit is the base.
        Ok(Some(self.object(&name).await?.unwrap_or_else(|| base.tree.clone())))
    }

    /// Returns the files of the record, and the files of the commit that the bottle did not receive. Without a record,
    /// returns only the files of the commit. A file has a `blob` only if the blob can be read.
    async fn known(
        &self,
        record: Option<&Given>,
        own: Option<&Repository>,
        head: &Files,
    ) -> Result<HashMap<Vec<u8>, KnownFile>, Failure> {
        let mut files = HashMap::new();
        // A complete record contains every file that the bottle received, so files that only the commit contains were
        // not received.
        let is_given = record.is_none_or(|record| record.is_partial);
        for (path, (mode, object)) in head {
            let blob = Some(object.clone());
            files.insert(path.clone(), KnownFile { mode: mode.clone(), blob, given: None, is_given });
        }
        if let Some(given) = record {
            // The files of a submodule are left out, because they belong to a separate history.
            let submodules: HashSet<&[u8]> =
                head.iter().filter(|(_, (mode, _))| mode == SUBMODULE).map(|(path, _)| &path[..]).collect();
            let is_in_submodule = |path: &[u8]| {
                let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
                !submodules.is_empty() && ends.into_iter().any(|end| submodules.contains(&path[..end]))
            };
            for (path, file) in given.files.iter().filter(|(path, _)| !is_in_submodule(path)) {
                let blob = file.blob.as_ref().map(ObjectId::to_string);
                let (mode, given) = (file.mode.clone(), Some(file.clone()));
                files.insert(path.clone(), KnownFile { mode, blob, given, is_given: true });
            }
        }
        let left_out = match own.filter(|_| is_given) {
            Some(own) => own.left_out_by_sparse_checkout(head)?,
            None => Vec::new(),
        };
        for path in record.iter().flat_map(|given| &given.missing).chain(&left_out) {
            files.entry(path.clone()).and_modify(|file| file.is_given = false);
        }
        self.forget_missing(&mut files).await?;
        Ok(files)
    }

    /// Sets `blob` to `None` if the blob cannot be read, for example in a partial clone.
    async fn forget_missing(&self, files: &mut HashMap<Vec<u8>, KnownFile>) -> Result<(), Failure> {
        let mut input = String::new();
        let paths: Vec<Vec<u8>> =
            files.iter().filter(|(_, file)| file.mode != SUBMODULE).map(|(path, _)| path.clone()).collect();
        for path in &paths {
            let blob = files.get(path).and_then(|file| file.blob.as_deref()).unwrap_or("-");
            input += blob;
            input.push('\n');
        }
        let arguments = ["cat-file", "--batch-check=%(objecttype)", "--buffer"];
        let most = input.len() + (paths.len() << 5) + (1 << 10);
        let found =
            self.store.git().run_with(&arguments, input.as_bytes(), most).await.map_err(git_failed)?;
        for (path, line) in paths.into_iter().zip(found.stdout.bytes.split(|byte| *byte == b'\n')) {
            if line != b"blob"
                && let Some(file) = files.get_mut(&path)
            {
                file.blob = None;
            }
        }
        Ok(())
    }

    /// Points [`RAW`] at a commit of the files at the start, as they were in the working tree. Returns the pointers
    /// that were imported instead of contents.
    fn write_start(
        &self,
        record: Option<&Given>,
        conversions: &Conversions,
        known: &HashMap<Vec<u8>, KnownFile>,
    ) -> Result<Pointers, Failure> {
        // The files need no order, but git builds the tree faster from sorted paths.
        let mut files: Vec<(&Vec<u8>, &KnownFile)> = known.iter().collect();
        files.sort_unstable_by_key(|(path, _)| *path);
        let git = self.store.git();
        let write = || {
            let mut import = FastImport::start(git.command(), RAW)?;
            let mut blobs = Blobs::start(&git)?;
            let mut pointers = Pointers::default();
            for (path, file) in files {
                if let Some((record, given)) = record.zip(file.given.as_ref())
                    && let Some(hash) = behind_pointer(record, path, file, given)?
                {
                    let text = hash.text();
                    import.file(path, &file.mode, text.len() as u64, &mut text.as_bytes())?;
                    pointers.given.insert(path.clone(), hash);
                    continue;
                }
                let place = file.given.as_ref().and_then(|given| given.content);
                if let Some((place, record)) = place.zip(record) {
                    let mut content = record.content(place)?;
                    import.file(path, &file.mode, content.limit(), &mut content)?;
                    continue;
                }
                let Some(blob) = &file.blob else { continue };
                let entry = (file.mode.clone(), blob.clone());
                if matches!(file.mode.as_str(), LINK | SUBMODULE) || !file.is_given {
                    import.link(path, &entry)?;
                    continue;
                }
                let conversion = conversions.of(path);
                if conversion.is_identity() {
                    import.link(path, &entry)?;
                    continue;
                }
                let most = if conversion.is_lfs() { MAX_POINTER as u64 } else { MAX_FILE };
                let content = blobs.read(blob, most)?;
                if conversion.is_lfs()
                    && let Some(pointer) = content.as_deref().and_then(Pointer::parse)
                {
                    pointers.lfs.insert(path.clone(), pointer);
                    import.link(path, &entry)?;
                    continue;
                }
                let Some(content) = content else { continue };
                if let Ok(raw) = conversion.smudge(&content, blob) {
                    import.file(path, &file.mode, raw.len() as u64, &mut &raw[..])?;
                }
            }
            import.end()?;
            Ok(pointers)
        };
        write().map_err(|error: io::Error| Failure::cannot("read the files of the start", error))
    }

    /// Determines how git would convert the files of a tree. The conversion depends on the attributes of the tree and
    /// of the user's repository, and on the settings of the user and of the repository.
    pub(super) async fn conversions(
        &self,
        own: Option<&Repository>,
        base: &Base,
        files: &Files,
    ) -> Result<Conversions, Failure> {
        let mut settings = Settings::default();
        let variables = git_user::variables(self.host);
        let listed = program(self.host)?.user_configuration(KEYS, variables).map_err(git_failed)?;
        settings.add_listed(&listed);
        if let Some(own) = own {
            settings.add(own.data().config());
        }
        let prefix = base.prefix.clone().into_bytes();
        let mut attributes = Attributes::default();
        let failed = |error| {
            Failure::state(format!("cannot convert the files: {error}"))
                .hint("remove attributes that no file needs from `.gitattributes`")
        };
        if let Some(path) = git_user::attributes_file(self.host) {
            let text = ignore_rules::read_users(&path).map_err(|error| {
                Failure::cannot("read your attribute file", error).hint("`core.attributesFile` names it")
            })?;
            attributes.add(b"", &text).map_err(failed)?;
        }
        let found = self.attribute_files(base, &prefix, files).await?;
        if !found.is_empty() {
            let unread = |error| Failure::cannot("read `.gitattributes`", error);
            let mut blobs = Blobs::start(&self.store.git()).map_err(unread)?;
            for (directory, object) in found {
                let text = blobs.read(&object, MAX_ATTRIBUTES as u64).map_err(unread)?;
                attributes
                    .add(&directory, &text.ok_or(TooManyAttributes).map_err(failed)?)
                    .map_err(failed)?;
            }
        }
        if let Some(text) = own.and_then(|own| own.data().info_attributes()) {
            attributes.add(b"", &text).map_err(failed)?;
        }
        Ok(Conversions { attributes, settings, prefix })
    }

    /// Returns the attribute files of a tree, each with its directory in the repository. The files of upper directories
    /// come first.
    async fn attribute_files(
        &self,
        base: &Base,
        prefix: &[u8],
        files: &Files,
    ) -> Result<Vec<(Vec<u8>, String)>, Failure> {
        let mut found = Vec::new();
        if let Some(commit) = base.commit.as_ref().filter(|_| !prefix.is_empty()) {
            let directory = base.prefix.trim_end_matches('/');
            let mut above: Vec<&Path> = Path::new(directory).ancestors().skip(1).collect();
            above.reverse();
            for directory in above {
                let path = directory.join(ATTRIBUTES_FILE);
                let name = format!("{commit}:{}", path.display());
                if let Some(object) = self.object(&name).await? {
                    found.push((directory.as_os_str().as_encoded_bytes().to_vec(), object.to_string()));
                }
            }
        }
        let mut inside: Vec<(Vec<u8>, String)> = Vec::new();
        for (path, (mode, object)) in files {
            let Some(directory) = path.strip_suffix(ATTRIBUTES_FILE.as_bytes()) else { continue };
            if !matches!(mode.as_str(), LINK | SUBMODULE)
                && (directory.is_empty() || directory.ends_with(b"/"))
            {
                let directory = [prefix, directory].concat();
                inside.push((directory.strip_suffix(b"/").unwrap_or(&directory).to_vec(), object.clone()));
            }
        }
        let depth = |directory: &[u8]| {
            (!directory.is_empty(), directory.iter().filter(|byte| **byte == b'/').count())
        };
        inside.sort_by(|(one, _), (other, _)| depth(one).cmp(&depth(other)).then_with(|| one.cmp(other)));
        found.extend(inside);
        require_few(&found)?;
        Ok(found)
    }

    /// Converts files as git would, and writes the results as objects.
    pub(super) async fn convert(
        &self,
        sources: Vec<Source>,
        conversions: &Conversions,
    ) -> Result<Vec<ConvertedFile>, Failure> {
        if sources.is_empty() {
            return Ok(Vec::new());
        }
        let git = self.store.git();
        let convert = || convert_all(&git, sources, conversions);
        let mut converted = convert().map_err(|error| Failure::cannot("convert the files", error))?;
        let written = self.listed(&self.tree_of_reference(CONVERTED).await?).await?;
        for (path, converted) in &mut converted {
            if let (Ok(converted), Some(version)) = (converted, written.get(path)) {
                converted.version = version.clone();
            }
        }
        Ok(converted)
    }

    /// Returns the agent's work since `reference` in the imported workspace, as git would commit it. For
    /// [`Purpose::Shown`], attributes that the agent wrote have no effect, because they could hide text.
    pub(super) async fn committed_work(
        &self,
        began: &Began,
        own: Option<&Repository>,
        base: &Base,
        reference: &Files,
        purpose: Purpose,
    ) -> Result<Committed, Failure> {
        let now = self.listed(&self.tree_of_reference(FILES).await?).await?;
        let differences = began.start.differences(reference, &now);
        if differences.is_empty() {
            return Ok(Committed::default());
        }
        let of_workspace = match purpose {
            Purpose::Shown => None,
            Purpose::Committed => Some(self.conversions(own, base, &now).await?),
        };
        let conversions = of_workspace.as_ref().unwrap_or(&began.conversions);
        let (mut work, mut sources) = (Committed::default(), Vec::new());
        let mut befores = HashMap::new();
        for Difference { path, before, after } in differences {
            if began.unknown.contains(&path) {
                continue;
            }
            match after {
                After::Absent => work.changes.push((path, before, None)),
                After::Committed(version) => work.changes.push((path, before, Some(version))),
                After::Raw(raw) => {
                    // If the conversion of a file needed a program at the start, the file is not committed without this
                    // program. This holds even if the attribute that names the program no longer exists.
                    if let Some(why) = began.conversions.of(&path).obstacle() {
                        work.unconverted.push((path, before, raw, why));
                        continue;
                    }
                    befores.insert(path.clone(), (before, raw.clone()));
                    sources.push(Source { before: reference.get(&path).cloned(), path, raw });
                }
            }
        }
        for (path, converted) in self.convert(sources, conversions).await? {
            let Some((before, raw)) = befores.remove(&path) else { continue };
            match converted {
                // The conversion drops text of this file, and the rest is unchanged. If the user's file has the same
                // content, the agent did not add the dropped text.
                Ok(Converted { hides_text: true, version, .. })
                    if before.as_ref() == Some(&version) && self.is_users(own, &path, &raw)? => {}
                Ok(Converted { hides_text: true, .. }) if purpose == Purpose::Shown => {
                    work.unconverted.push((path, before, raw, Unconverted::Content));
                }
                Ok(Converted { version, .. }) if before.as_ref() == Some(&version) => {}
                Ok(Converted { version, pointer, .. }) => {
                    work.contents.extend(pointer.map(|pointer| (path.clone(), raw.1, pointer)));
                    work.changes.push((path, before, Some(version)));
                }
                Err(why) => work.unconverted.push((path, before, raw, why)),
            }
        }
        work.changes.sort_unstable();
        Ok(work)
    }

    /// Whether the user's file at this path has the same content.
    fn is_users(&self, own: Option<&Repository>, path: &[u8], raw: &Version) -> Result<bool, Failure> {
        let Some(users) = own.and_then(|own| own.file(&path_of(path.to_vec()), MAX_FILE)) else {
            return Ok(false);
        };
        let read = || Blobs::start(&self.store.git())?.read(&raw.1, MAX_FILE);
        let content = read().map_err(|error| Failure::cannot("read a file of the bottle", error))?;
        Ok(content.is_some_and(|content| content == users))
    }

    /// Returns the files of a tree for which git would commit the same version as at the start.
    pub(super) async fn as_at_start(
        &self,
        began: &Began,
        files: &Files,
    ) -> Result<HashSet<Vec<u8>>, Failure> {
        let conversions = &began.conversions;
        let mut sources = Vec::new();
        for (path, raw) in files {
            let before = began.start.files.get(path).and_then(|started| started.committed.clone());
            if before.is_some() && raw.0 != LINK && !conversions.of(path).is_identity() {
                sources.push(Source { path: path.clone(), raw: raw.clone(), before });
            }
        }
        let mut found = HashSet::new();
        for (path, converted) in self.convert(sources, conversions).await? {
            let before = began.start.files.get(&path).and_then(|started| started.committed.as_ref());
            if converted.is_ok_and(|converted| Some(&converted.version) == before && !converted.hides_text) {
                found.insert(path);
            }
        }
        Ok(found)
    }

    /// Copies the contents of new Git LFS pointers into the user's repository. Returns the paths of the files whose
    /// content could not be added.
    pub(super) fn add_lfs_contents(
        &self,
        own: &Repository,
        contents: &[(Vec<u8>, String, Pointer)],
    ) -> Result<Vec<Vec<u8>>, Failure> {
        let mut left = Vec::new();
        let failed = |error| Failure::cannot("read a file of the bottle", error);
        for (path, object, pointer) in contents {
            let mut content = tempfile::tempfile_in(self.store.path()).map_err(failed)?;
            let mut blobs = Blobs::start(&self.store.git()).map_err(failed)?;
            let copied = blobs.open(object).and_then(|mut from| io::copy(&mut from, &mut content));
            copied.and_then(|_| content.flush()).map_err(failed)?;
            if let Err(error) = own.data().add_lfs_content(pointer, &mut content) {
                tracing::warn!("a content of Git LFS was not added: {error}");
                left.push(path.clone());
            }
        }
        Ok(left)
    }
}

/// A file at the start of the bottle.
struct KnownFile {
    mode: String,
    blob: Option<String>,
    /// The file's entry in the record.
    given: Option<GivenFile>,
    is_given: bool,
}

/// The pointers that were imported instead of the content of files.
#[derive(Default)]
struct Pointers {
    /// The pointers of Git LFS.
    lfs: HashMap<Vec<u8>, Pointer>,
    /// The hashes and sizes of files in the record.
    given: HashMap<Vec<u8>, Pointer>,
}

/// Returns the pointer to import instead of the content of a file in the record, so that the content is read only if
/// the agent changed the file. `None` if the content is always read, or is unknown.
fn behind_pointer(
    record: &Given,
    path: &[u8],
    file: &KnownFile,
    given: &GivenFile,
) -> io::Result<Option<Pointer>> {
    let is_rules = path
        .strip_suffix(IGNORE_FILE.as_bytes())
        .is_some_and(|above| above.is_empty() || above.ends_with(b"/"));
    // In a repository, the content of a file is needed to know how git would commit the file.
    let is_read = given.content.is_some() && (is_rules || record.origin != Origin::Directory);
    if file.blob.is_some() || file.mode == LINK || is_read {
        return Ok(None);
    }
    record.hash(given)
}

/// Fails if a tree has more attribute files than the limit. If an attribute file were skipped, files would be converted
/// differently from git.
fn require_few(files: &[(Vec<u8>, String)]) -> Result<(), Failure> {
    let Some((directory, _)) = files.get(MAX_ATTRIBUTE_FILES) else { return Ok(()) };
    let path = path_of(directory.clone()).join(ATTRIBUTES_FILE);
    let count = files.len();
    let first = one_line(&path.display().to_string());
    Err(Failure::state(format!(
        "cannot convert the files: there are {count} attribute files, and only {MAX_ATTRIBUTE_FILES} are read"
    ))
    .about(&first)
    .hint(format!("the first one that is not read is {first}; move its lines into a file above it")))
}

/// Converts files, and points [`CONVERTED`] at a commit of the results.
fn convert_all(git: &Git, sources: Vec<Source>, conversions: &Conversions) -> io::Result<Vec<ConvertedFile>> {
    let mut import = FastImport::start(git.command(), CONVERTED)?;
    let mut blobs = Blobs::start(git)?;
    let mut converted = Vec::new();
    for Source { path, raw, before } in sources {
        let conversion = conversions.of(&path);
        let result = if conversion.is_identity() {
            import.link(&path, &raw)?;
            Ok(Converted { version: raw, pointer: None, hides_text: false })
        } else if let Some(obstacle) = conversion.obstacle() {
            Err(obstacle)
        } else if let Some(content) = blobs.read(&raw.1, MAX_FILE)? {
            let before = match before.filter(|(mode, _)| mode != SUBMODULE) {
                Some((_, before)) => blobs.read(&before, MAX_FILE)?,
                None => None,
            };
            match conversion.clean(&content, before.as_deref()) {
                Ok(cleaned) => {
                    import.file(&path, &raw.0, cleaned.len() as u64, &mut &cleaned[..])?;
                    let is_new = conversion.is_lfs() && cleaned[..] != content[..];
                    let pointer = if is_new { Pointer::parse(&cleaned) } else { None };
                    Ok(Converted { version: raw, pointer, hides_text: conversion.hides_text(&content) })
                }
                Err(why) => Err(why),
            }
        } else {
            Err(Unconverted::Size)
        };
        converted.push((path, result));
    }
    import.end()?;
    Ok(converted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_file_that_is_not_read_is_an_error_that_names_it() {
        let file = |number: usize| (format!("d{number:04}").into_bytes(), "id".to_owned());
        let files: Vec<_> = (0..=MAX_ATTRIBUTE_FILES).map(file).collect();
        assert!(require_few(&files[..MAX_ATTRIBUTE_FILES]).is_ok());
        let error = require_few(&files).expect_err("too many");
        assert!(error.message.contains("2001 attribute files"), "{}", error.message);
        assert!(error.hint.is_some_and(|hint| hint.contains("is d2000/.gitattributes")));
    }
}
