//! `bottle fs`: works on files of a workspace, in a running bottle or in the kept files of an ended bottle.
//!
//! - `list`: `ls`, `stat` and `glob` · `content`: read and write · `archive`: export and import · `patch` · `remove` ·
//!   `grep`
//! - `reset`: restores the state at the start

mod archive;
mod content;
mod grep;
mod list;
mod patch;
mod remove;
mod reset;

use std::ffi::OsString;
use std::io::IsTerminal;

use bottle_host::Host;
use bottle_lib::files::Files;
use bottle_lib::report::FileDocument;
use bottle_policy::names::Slug;
use bottle_protocol::session::files::{Entries, FileEvent, FileInfo, FilePath, FileRequest, Scope};
use bytes::Bytes;
use tokio::io::AsyncRead;

use super::candidates;
use crate::console::error::CliError;
use crate::console::output::{Output, one_line, reader_gone};
use crate::console::runtime::block_on;
use crate::console::signals::{Signals, interrupted};

/// The commands of `bottle fs`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Fs {
    Ls(list::Ls),
    Stat(list::Stat),
    Read(content::Read),
    Write(content::Write),
    Patch(patch::Patch),
    Rm(remove::Rm),
    Glob(list::Glob),
    Grep(grep::Grep),
    Export(archive::Export),
    Import(archive::Import),
    Reset(reset::Reset),
}

impl Fs {
    pub(crate) fn run(self, host: &Host, output: &Output) -> Result<u8, CliError> {
        match self {
            Self::Ls(ls) => ls.run(host, output),
            Self::Stat(stat) => stat.run(host, output),
            Self::Read(read) => read.run(host, output),
            Self::Write(write) => write.run(host, output),
            Self::Patch(patch) => patch.run(host, output),
            Self::Rm(rm) => rm.run(host, output),
            Self::Glob(glob) => glob.run(host, output),
            Self::Grep(grep) => grep.run(host, output),
            Self::Export(export) => export.run(host, output),
            Self::Import(import) => import.run(host, output),
            Self::Reset(reset) => reset.run(host, output),
        }
    }
}

/// A file or directory of a bottle.
#[derive(Debug, clap::Args)]
struct Target {
    /// The bottle, as `bottle list` shows it
    #[arg(add = candidates::with_files())]
    slug: Slug,
    /// The path, from the workspace on
    path: OsString,
}

/// What `glob` and `grep` leave out.
#[derive(Debug, clap::Args)]
struct Excludes {
    /// Leave out what matches a pattern of .gitignore
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Search the .git directories too
    #[arg(long)]
    git: bool,
}

impl Excludes {
    fn scope(&self, path: Option<&OsString>) -> Scope {
        Scope { path: path_or_workspace(path), exclude: self.exclude.clone(), git: self.git }
    }
}

fn path_or_workspace(path: Option<&OsString>) -> FilePath {
    path.map_or_else(|| FilePath::from("."), FilePath::from)
}

/// A client that sends requests about files. A signal ends a request.
struct Client<'a> {
    files: Files<'a>,
}

impl<'a> Client<'a> {
    fn new(host: &'a Host, slug: &'a Slug) -> Self {
        Self { files: Files::new(host, slug) }
    }

    /// Sends a request without input.
    fn ask(&self, request: FileRequest) -> Result<FileEvent, CliError> {
        self.run(request, tokio::io::empty(), |_| Ok(()))
    }

    /// Sends a request whose input is standard input.
    fn ask_with_input(&self, request: FileRequest, output: &Output) -> Result<FileEvent, CliError> {
        if std::io::stdin().is_terminal() {
            output.note("reads standard input until Ctrl-D");
        }
        self.run(request, tokio::io::stdin(), |_| Ok(()))
    }

    /// Sends a request with `input`. Calls `received` with the data of the response.
    fn run(
        &self,
        request: FileRequest,
        input: impl AsyncRead + Unpin,
        received: impl FnMut(Bytes) -> Result<(), CliError>,
    ) -> Result<FileEvent, CliError> {
        interruptible(self.files.send(request, input, received))
    }

    /// Sends a request without input. Returns the document about the response.
    fn document(&self, request: FileRequest) -> Result<FileDocument, CliError> {
        interruptible(async { Ok(self.files.document(request, tokio::io::empty()).await?) })
    }

    /// Lists entries in parts. See [`Files::list`].
    fn list(
        &self,
        request: impl Fn(Option<FilePath>, u32) -> FileRequest,
        after: Option<FilePath>,
        limit: u32,
        each: impl FnMut(Vec<FileInfo>) -> Result<(), CliError>,
    ) -> Result<Entries, CliError> {
        interruptible(self.files.list(request, after, limit, each))
    }
}

/// Runs a request until it is answered, a signal arrives, or the reader of the output is gone.
fn interruptible<T>(request: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    block_on(async {
        let mut signals = Signals::catch()?;
        tokio::select! {
            answer = request => answer,
            number = signals.end() => Err(interrupted(number)),
            gone = reader_gone() => Err(gone),
        }
    })
}

/// Formats a path as one line of text.
fn shown(path: &FilePath) -> String {
    one_line(&String::from_utf8_lossy(path.as_bytes()))
}
