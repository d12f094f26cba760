//! Reads the content of many files from `bottle`'s own git directory with one process.

use std::io::{self, BufRead, BufReader, Read, Take, Write};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use crate::Git;

/// The maximum length in bytes of the line that precedes an object's content.
const MAX_HEAD: u64 = 200;

/// A running `git cat-file --batch` (git-cat-file(1)). Dropping the value kills the process.
#[derive(Debug)]
pub struct Blobs {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Blobs {
    /// Starts `git cat-file --batch` in the git directory of `git`.
    ///
    /// # Errors
    /// Returns the I/O error of the failed start.
    pub fn start(git: &Git) -> io::Result<Self> {
        let mut command = git.command();
        command.args(["cat-file", "--batch"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // In its own process group, git gets no signals from the terminal. This process may still need git to undo
        // changes.
        command.process_group(0);
        let mut child = command.spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (requests, answers) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { child, requests, answers: BufReader::new(answers) })
    }

    /// Returns a reader for the content of a file. The reader's limit is the length of the content. The caller reads
    /// the content to its end, and then calls [`Self::close`].
    ///
    /// # Errors
    /// Fails if there is no file with this id, or the process has ended.
    pub fn open(&mut self, object: &str) -> io::Result<Take<&mut BufReader<ChildStdout>>> {
        writeln!(self.requests, "{object}")?;
        // The answer is `OBJECT blob SIZE`, or `OBJECT missing`.
        let mut head = String::new();
        (&mut self.answers).take(MAX_HEAD).read_line(&mut head)?;
        let mut words = head.trim_end().split(' ').skip(1);
        let size = words.next().filter(|kind| *kind == "blob").and_then(|_| words.next()?.parse().ok());
        let size = size.ok_or_else(|| io::Error::other(format!("the repository lacks the file {object}")))?;
        Ok((&mut self.answers).take(size))
    }

    /// Reads the content of a file of at most `most` bytes. `None` if the content is longer.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::open`].
    pub fn read(&mut self, object: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        let mut from = self.open(object)?;
        let mut content = Vec::new();
        let is_short = from.limit() <= most;
        if is_short {
            from.read_to_end(&mut content)?;
        } else {
            io::copy(&mut from, &mut io::sink())?;
        }
        self.close()?;
        Ok(is_short.then_some(content))
    }

    /// Reads the line feed after the content.
    ///
    /// # Errors
    /// Fails if the process has ended.
    pub fn close(&mut self) -> io::Result<()> {
        self.answers.read_exact(&mut [0])
    }
}

impl Drop for Blobs {
    fn drop(&mut self) {
        // Both calls do nothing if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
