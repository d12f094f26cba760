//! Writes a tree into `bottle`'s own git directory with `git fast-import`.

use std::io::{self, BufWriter, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::ObjectId;
use crate::changes::Version;

/// The maximum number of bytes of git's standard error that are kept. Further bytes are dropped.
const MAX_STDERR: u64 = 2000;

/// A running `git fast-import` process. Dropping the value before [`Self::end`] kills the process.
#[derive(Debug)]
pub struct FastImport {
    child: Child,
    input: Option<BufWriter<ChildStdin>>,
}

impl FastImport {
    /// Starts git with the command `git`, and begins a commit. When git has ended, `reference` points to this commit.
    ///
    /// # Errors
    /// Fails if git cannot be started.
    pub fn start(mut git: Command, reference: &str) -> io::Result<Self> {
        git.args(["-c", "core.compression=1", "fast-import", "--quiet", "--force", "--done"]);
        git.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = git.spawn()?;
        let mut input = child.stdin.take().map(BufWriter::new);
        if let Some(input) = &mut input {
            write!(input, "commit {reference}\ncommitter bottle <> 0 +0000\ndata 0\n")?;
        }
        Ok(Self { child, input })
    }

    fn input(&mut self) -> io::Result<&mut BufWriter<ChildStdin>> {
        self.input.as_mut().ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }

    /// Adds a file with `size` bytes of `content`.
    ///
    /// # Errors
    /// Fails if the content is shorter or cannot be read, or git has ended.
    pub fn file(&mut self, path: &[u8], mode: &str, size: u64, content: &mut impl Read) -> io::Result<()> {
        let input = self.input()?;
        write!(input, "M {mode} inline ")?;
        input.write_all(&quoted(path))?;
        write!(input, "\ndata {size}\n")?;
        if io::copy(&mut content.take(size), input)? != size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        input.write_all(b"\n")
    }

    /// Adds a path with a mode and an object id that a commit already has for it.
    ///
    /// # Errors
    /// Fails if git has ended.
    pub fn link(&mut self, path: &[u8], (mode, object): &Version) -> io::Result<()> {
        let input = self.input()?;
        write!(input, "M {mode} {object} ")?;
        input.write_all(&quoted(path))?;
        input.write_all(b"\n")
    }

    /// Starts the tree with the files of a commit.
    ///
    /// # Errors
    /// Fails if git has ended.
    pub fn from(&mut self, commit: &ObjectId) -> io::Result<()> {
        writeln!(self.input()?, "from {commit}")
    }

    /// Removes a path.
    ///
    /// # Errors
    /// Fails if git has ended.
    pub fn delete(&mut self, path: &[u8]) -> io::Result<()> {
        let input = self.input()?;
        input.write_all(b"D ")?;
        input.write_all(&quoted(path))?;
        input.write_all(b"\n")
    }

    /// Ends the commit, and waits until git has ended.
    ///
    /// # Errors
    /// Fails if git fails. The error contains the end of git's standard error.
    pub fn end(mut self) -> io::Result<()> {
        let ended = self.input().and_then(|input| {
            input.write_all(b"done\n")?;
            input.flush()
        });
        self.input = None;
        let mut stderr = Vec::new();
        if let Some(errors) = self.child.stderr.take() {
            errors.take(MAX_STDERR).read_to_end(&mut stderr)?;
        }
        if self.child.wait()?.success() {
            return ended;
        }
        Err(io::Error::other(format!("git failed: {}", String::from_utf8_lossy(&stderr).trim())))
    }
}

impl Drop for FastImport {
    fn drop(&mut self) {
        // Both calls do nothing if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Quotes a path with arbitrary bytes for the input streams and files of git.
pub fn quoted(path: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'"'];
    for byte in path {
        match byte {
            b'\n' => quoted.extend(b"\\n"),
            b'"' | b'\\' => quoted.extend([b'\\', *byte]),
            byte => quoted.push(*byte),
        }
    }
    quoted.push(b'"');
    quoted
}
