//! Describes the files that `--cwd` copies into a bottle: their number and size, and the private files among them. Also
//! refuses to copy the home directory.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bottle_host::Host;
use bottle_keeper::launch::{CopiedWorktrees, FileSelection, GitDir, Objects, WorkspaceFiles};
use bottle_plan::GitDirectory;
use bottle_protocol::secret_files::is_secret_file;
use bottle_repository::{Entry, GitFile, GitFileError, Stop, Walk, WalkError};
use indicatif::HumanBytes;
use rustix::fs::FileType;

use crate::failure::Failure;
use crate::text::{counted, one_line};

/// The maximum number of files that are counted.
const COUNTED_FILES: usize = 50_000;

/// The maximum number of paths that a line names. Further paths are only counted.
const MAX_NAMED: usize = 6;

/// The estimated number of bytes that are copied per second on a typical disk.
const BYTES_PER_SECOND: u64 = 200 << 20;
const FILES_PER_SECOND: u64 = 10_000;

/// The duration of a copy is shown only if the estimate is at least this long.
const SHORT: Duration = Duration::from_secs(2);

/// Names of directories that contain keys or credentials.
const PRIVATE_DIRECTORIES: [&str; 8] =
    [".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".password-store", "git-crypt"];

/// Names and suffixes of files that contain keys or credentials, besides the files that the git gate reports.
const PRIVATE_FILES: [&str; 2] = [".vault-token", "credentials.json"];
const PRIVATE_SUFFIXES: [&str; 2] = [".pem", ".key"];

/// A description of the files in a copy of a directory.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Copied {
    files: usize,
    bytes: u64,
    /// Whether counting stopped before all files were counted.
    more: bool,
    /// The private files and directories.
    private: Named,
    /// Whether ignored files should be left out, but git would find no `.gitignore` for the directory.
    without_ignore_file: bool,
    /// The git directory, if it is outside of the copied directory. Its files are copied too.
    git_dir: Option<PathBuf>,
    /// The directories from which the repository borrows objects. The borrowed objects are copied too.
    borrowed: Named,
    /// The ignore files that are not read, because they are links or not regular files.
    not_read: Named,
    /// The settings and hooks of the repository that are not copied.
    left_out: Named,
}

impl Copied {
    /// Counts the files that are copied. If `shares_objects` is set, the objects of a repository are not copied, and so
    /// not counted. Counting stops after [`COUNTED_FILES`] files or when `stop` is set, so that a large directory does
    /// not delay the question to the user.
    ///
    /// # Errors
    /// When the copy would fail, because the ignore rules cannot be read or the directory has too many levels or files.
    pub(super) fn of(
        directory: &Path,
        selection: FileSelection<'_>,
        shares_objects: bool,
        confirmed: &[GitDirectory],
        stop: &Stop,
    ) -> Result<Self, WalkError> {
        let unreadable = |error| WalkError::System { path: directory.to_owned(), error };
        let git_dir = GitDir::of(directory, confirmed).map_err(unreadable)?;
        let all = git_dir.as_ref().map(GitDir::objects).unwrap_or_default();
        let objects = if all.is_empty() { Objects::Included } else { Objects::Separate };
        let linked = git_dir.as_ref().filter(|git_dir| git_dir.is_linked());
        let mut files = WorkspaceFiles::of(directory, selection, objects, git_dir.as_ref(), stop)?;
        let mut copied = Self {
            without_ignore_file: !files.has_ignore_file,
            git_dir: linked.and_then(GitDir::outside),
            ..Self::default()
        };
        git_dir.iter().flat_map(GitDir::borrowed).for_each(|path| copied.borrowed.note(path));
        git_dir.iter().flat_map(GitDir::left_out).for_each(|name| copied.left_out.note(Path::new(name)));
        let is_git = |path: &Path| linked.is_some() && path == Path::new(".git");
        for entry in &mut files {
            if !entry.as_ref().is_ok_and(|entry| is_git(entry.path())) && !copied.count(entry)? {
                break;
            }
        }
        // Git's records of linked worktrees are not counted.
        for file in git_dir
            .as_ref()
            .map(|git_dir| git_dir.files(objects, &CopiedWorktrees::default(), "", stop))
            .transpose()
            .map_err(unreadable)?
            .into_iter()
            .flatten()
        {
            let goes_on = match file {
                Ok(GitFile::Entry(_, entry)) => copied.count(Ok(entry))?,
                Ok(GitFile::Made(_, text) | GitFile::Index(text, _)) => copied.add(text.len() as u64),
                Ok(GitFile::Directory(_)) => true,
                Err(GitFileError::Walk(error)) => copied.count(Err(error))?,
                // An unreadable file is no error here, because the copy reports it later.
                Err(_) => true,
            };
            if !goes_on {
                break;
            }
        }
        let counted = if shares_objects || copied.more { &[] } else { all };
        for objects in counted {
            let objects = objects.try_clone().map_err(unreadable)?;
            for entry in Walk::content(objects).until(stop.clone()) {
                if !copied.count(entry)? {
                    break;
                }
            }
        }
        for path in files.ignore_files_not_read() {
            copied.not_read.note(path.strip_prefix(directory).unwrap_or(path));
        }
        Ok(copied)
    }

    /// Counts an entry. Returns false if counting has to stop.
    fn count(&mut self, entry: Result<Entry, WalkError>) -> Result<bool, WalkError> {
        let entry = match entry {
            Ok(entry) => entry,
            Err(WalkError::Stopped) => {
                self.more = true;
                return Ok(false);
            }
            // An unreadable file is no error here, because the copy reports it later.
            Err(WalkError::System { .. }) => return Ok(true),
            Err(error) => return Err(error),
        };
        if entry.kind() != FileType::RegularFile {
            return Ok(true);
        }
        let goes_on = self.add(entry.size());
        if goes_on {
            self.private.note_private(entry.path());
        }
        Ok(goes_on)
    }

    /// Adds a file of this size. Returns false when the limit is reached.
    fn add(&mut self, bytes: u64) -> bool {
        if self.files == COUNTED_FILES {
            self.more = true;
            return false;
        }
        self.files += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        true
    }

    /// Describes the number of files and their size, and the duration of the copy if it is long.
    pub(super) fn size(&self) -> String {
        let more = if self.more { "more than " } else { "" };
        let size = format!("{more}{}, {more}{}", counted(self.files, "file"), HumanBytes(self.bytes));
        let seconds = self.bytes / BYTES_PER_SECOND + self.files as u64 / FILES_PER_SECOND;
        if Duration::from_secs(seconds) < SHORT {
            return size;
        }
        format!("{size}; the copy takes about {more}{seconds} s")
    }

    /// Returns the warnings about the copy for the user. `name` is the name of the directory in the workspace, if there
    /// are several directories.
    pub(super) fn warnings(&self, name: Option<&str>) -> Vec<String> {
        let (of, there) = match name.map(one_line) {
            Some(name) => (format!(" of {name}"), "in it"),
            None => (String::new(), "here"),
        };
        let mut lines: Vec<String> =
            self.private.line(&format!("--cwd copies private files{of}")).into_iter().collect();
        lines.extend(self.git_dir.as_ref().map(|path| {
            let path = one_line(&path.display().to_string());
            format!("--cwd copies the files of git{of} from {path}, which is outside of the directory")
        }));
        lines.extend(
            self.borrowed.line(&format!("--cwd copies the objects of git{of} that are borrowed, from")),
        );
        lines.extend(
            self.not_read.line(&format!("--cwd ignores these rules{of}, which are no regular files")),
        );
        lines.extend(self.left_out.line(&format!("--cwd leaves out these settings and hooks of git{of}")));
        if self.without_ignore_file {
            lines.push(format!("--cwd copies all files{of}: there is no .gitignore {there}"));
        }
        lines
    }
}

/// The first paths of a kind, relative to a directory, and the total number of such paths.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Named {
    first: Vec<PathBuf>,
    count: usize,
}

impl Named {
    /// Adds a path, unless it is already among the first paths.
    pub(super) fn note(&mut self, path: &Path) {
        if self.first.iter().any(|known| known == path) {
            return;
        }
        self.count += 1;
        if self.first.len() < MAX_NAMED {
            self.first.push(path.to_owned());
        }
    }

    /// Adds the path of the file, or of a directory above it, if this path usually contains keys or credentials.
    pub(super) fn note_private(&mut self, file: &Path) {
        if let Some(private) = private_part(file) {
            self.note(private);
        }
    }

    /// Returns the paths as one text. `None` if there are no paths.
    pub(super) fn shown(&self) -> Option<String> {
        let mut names: Vec<String> =
            self.first.iter().map(|path| one_line(&path.display().to_string())).collect();
        if self.count > names.len() {
            names.push(format!("{} more", self.count - names.len()));
        }
        (self.count > 0).then(|| names.join(", "))
    }

    /// Returns a line with `what` and the paths. `None` if there are no paths.
    pub(super) fn line(&self, what: &str) -> Option<String> {
        self.shown().map(|names| format!("{what}: {names}"))
    }
}

/// Returns the outermost directory in the file's path that usually contains keys or credentials. Without such a
/// directory, returns the file itself if it usually contains them.
fn private_part(file: &Path) -> Option<&Path> {
    let name_of = |path: &Path| path.file_name().map(|name| name.to_string_lossy().to_lowercase());
    let directory = file
        .ancestors()
        .skip(1)
        .filter(|directory| {
            name_of(directory).is_some_and(|name| PRIVATE_DIRECTORIES.contains(&name.as_str()))
        })
        .last();
    if directory.is_some() {
        return directory;
    }
    let name = name_of(file)?;
    let parent = file.parent().and_then(Path::file_name).unwrap_or_default();
    let is_private = is_secret_file(parent.as_bytes(), name.as_bytes())
        || PRIVATE_FILES.contains(&name.as_str())
        || PRIVATE_SUFFIXES.iter().any(|suffix| name.ends_with(suffix));
    is_private.then_some(file)
}

/// Refuses to copy or mount the home directory, or a directory that contains the home directory. `verb` is the verb in
/// the error message.
///
/// # Errors
/// Returns a [`Failure`] of kind usage if the directory is or contains the home directory.
pub(crate) fn require_no_home(host: &Host, directory: &Path, verb: &str) -> Result<(), Failure> {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let (cwd, home) = (real(directory), real(&host.user_home));
    if !home.starts_with(&cwd) {
        return Ok(());
    }
    let what = if cwd == home { "it is" } else { "it contains" };
    Err(Failure::usage(format!("cannot {verb} {}: {what} your home directory", directory.display()))
        .about("--cwd")
        .hint("start in the directory of a project, or without `--cwd` and use `bottle cp`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_private_files_and_directories() {
        for (file, private) in [
            ("a/.ssh/config", Some("a/.ssh")),
            (".aws/x/y", Some(".aws")),
            ("keys/ID_RSA", Some("keys/ID_RSA")),
            ("server.pem", Some("server.pem")),
            (".env", Some(".env")),
            (".env.local", Some(".env.local")),
            (".env.example", None),
            ("id_rsa.pub", None),
            ("src/key", None),
            ("src/keyboard.rs", None),
        ] {
            assert_eq!(private_part(Path::new(file)), private.map(Path::new), "{file}");
        }
    }

    #[test]
    fn does_not_count_shared_objects() {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |path: &str| {
            let path = directory.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            std::fs::write(path, "1234567890").expect("written");
        };
        [".gitignore", ".git/refs/heads/main", ".git/objects/pack/a.pack"].into_iter().for_each(write);
        std::fs::write(directory.path().join(".git/HEAD"), "ref: refs/heads/main\n").expect("written");
        let of = |shares| {
            Copied::of(directory.path(), FileSelection::NotIgnored(None), shares, &[], &Stop::default())
                .expect("walked")
        };
        let size = |shares| of(shares).size();
        assert_eq!((size(false).as_str(), size(true).as_str()), ("4 files, 51 B", "3 files, 41 B"));
    }

    #[test]
    fn describes_a_copy() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::write(directory.path().join(".env"), "x").expect("written");
        let of =
            |selection| Copied::of(directory.path(), selection, true, &[], &Stop::default()).expect("walked");
        let copied = of(FileSelection::NotIgnored(None));
        assert_eq!(copied.size(), "1 file, 1 B");
        assert_eq!(
            copied.warnings(None),
            ["--cwd copies private files: .env", "--cwd copies all files: there is no .gitignore here"]
        );
        assert_eq!(of(FileSelection::All).warnings(None), ["--cwd copies private files: .env"]);
        let private = Named { first: Vec::new(), count: 9 };
        let large = Copied { files: 50_000, bytes: 2 << 30, more: true, private, ..Copied::default() };
        assert_eq!(
            large.size(),
            "more than 50000 files, more than 2.00 GiB; the copy takes about more than 15 s"
        );
        assert_eq!(large.warnings(Some("api")), ["--cwd copies private files of api: 9 more"]);
    }
}
