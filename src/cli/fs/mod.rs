//! `bottle fs`: works on files of a workspace, in a running bottle or on the files of one that ended.
//!
//! - `list`: ls, stat and glob · `content`: read and write · `archive`: export and import · `patch` · `remove` · `grep`
//! - `reset`: back to the state at the start

mod archive;
mod content;
mod grep;
mod list;
mod patch;
mod remove;
mod reset;

use std::ffi::OsString;
use std::io::IsTerminal;

use bottle_backend::Access;
use bottle_channel::{Event, StreamReceiver};
use bottle_contract::names::Slug;
use bottle_contract::session::files::{FileEvent, FilePath, FileRequest, Scope};
use bottle_contract::session::guest::{GuestEvent, GuestRequest, STDIN, STDOUT};
use bottle_host::Host;
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::candidates;
use super::connect::{connect_or_open_files, guest_failure, keeper_lost, open_guest, unexpected_answer};
use super::error::CliError;
use super::exit;
use super::output::{Output, one_line, reader_gone};
use super::runtime::block_on;
use super::session::{Signals, interrupted};

/// The size of a piece of standard input in bytes.
const PIECE: usize = 16 * 1024;

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

/// The client of a guest that works on files.
struct Client<'a> {
    host: &'a Host,
    slug: &'a Slug,
}

impl<'a> Client<'a> {
    fn new(host: &'a Host, slug: &'a Slug) -> Self {
        Self { host, slug }
    }

    /// Sends a request without input.
    fn ask(&self, request: FileRequest) -> Result<FileEvent, CliError> {
        self.run(request, tokio::io::empty(), |_| Ok(()))
    }

    /// Sends a request with standard input.
    fn ask_with_input(&self, request: FileRequest, output: &Output) -> Result<FileEvent, CliError> {
        if std::io::stdin().is_terminal() {
            output.note("reads standard input until Ctrl-D");
        }
        self.run(request, tokio::io::stdin(), |_| Ok(()))
    }

    /// Sends a request with this input. `received` gets the data of the answer.
    fn run(
        &self,
        request: FileRequest,
        input: impl AsyncRead + Unpin,
        received: impl FnMut(Bytes) -> Result<(), CliError>,
    ) -> Result<FileEvent, CliError> {
        let access = if request.writes() { Access::Write } else { Access::Read };
        let hint = hint(&request, self.slug);
        block_on(async {
            let mut signals = Signals::catch()?;
            let answered = async {
                let channel = connect_or_open_files(self.host, self.slug, access).await?;
                let stream = open_guest(&channel, GuestRequest::Files(request)).await?;
                let (sender, receiver) = stream.split();
                let mut answer = std::pin::pin!(self.answer(receiver, received, &hint));
                let sent = async {
                    let mut input = input;
                    let mut piece = vec![0; PIECE];
                    loop {
                        // Without the end of the stream, the guest drops what it got.
                        let read = input.read(&mut piece).await;
                        match read.map_err(|error| CliError::cannot("read standard input", error))? {
                            0 => return sender.end().await.map_err(keeper_lost),
                            read => sender.data(STDIN, &piece[..read]).await.map_err(keeper_lost)?,
                        }
                    }
                };
                tokio::select! {
                    answer = &mut answer => answer,
                    sent = sent => match sent {
                        Ok(()) => answer.await,
                        Err(error) => Err(error),
                    },
                }
            };
            tokio::select! {
                answer = answered => answer,
                number = signals.end() => Err(interrupted(number)),
                gone = reader_gone() => Err(gone),
            }
        })
    }

    async fn answer(
        &self,
        mut receiver: StreamReceiver,
        mut received: impl FnMut(Bytes) -> Result<(), CliError>,
        hint: &str,
    ) -> Result<FileEvent, CliError> {
        loop {
            match receiver.next().await {
                Some(Event::Data { fd: STDOUT, bytes }) => received(bytes)?,
                Some(Event::Data { .. }) => {}
                Some(event @ Event::Message(_)) => {
                    return match event.parse().map_err(keeper_lost)? {
                        GuestEvent::Files(event) => Ok(event),
                        GuestEvent::Failed(failure) => {
                            Err(guest_failure(failure).exit(exit::FAILED).about(self.slug).hint(hint))
                        }
                        _ => Err(unexpected_answer()),
                    };
                }
                Some(Event::Reset(why)) => return Err(keeper_lost(why).about(self.slug)),
                Some(Event::End) | None => return Err(unexpected_answer().about(self.slug)),
            }
        }
    }
}

/// The next step after a request that failed.
fn hint(request: &FileRequest, slug: &Slug) -> String {
    match request {
        FileRequest::Patch { .. } => {
            format!("`bottle fs read {slug} PATH` shows a file; `git diff` writes diffs in this form")
        }
        FileRequest::Replace(_) => format!("`bottle fs read {slug} PATH` shows the file"),
        FileRequest::Grep(_) => "`--fixed-strings` searches for plain text".to_owned(),
        FileRequest::RemoveFiles { .. } => format!("`bottle fs reset {slug}` continues"),
        FileRequest::Glob(_) => format!("`bottle fs ls {slug} --recursive` lists all paths"),
        _ => format!("`bottle fs ls {slug} --recursive` lists the files of its workspace"),
    }
}

/// A path as one line of text.
fn shown(path: &FilePath) -> String {
    one_line(&String::from_utf8_lossy(path.as_bytes()))
}
