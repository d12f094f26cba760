//! How a new process gets what it needs and says what became of it.
//!
//! Its standard input is one end of a socket pair: a length, the specification as JSON and the file
//! descriptors that go with it come in; [`Report`]s, one JSON line each, go out. So nothing is on the
//! command line or in the environment, no descriptor has to be inherited by number, and a starter that
//! dies is noticed as the end of the stream.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

/// The most a specification may take: a few thousand exposed paths.
const SPEC_MAX: u32 = 1 << 20;

/// The most one report may take.
const REPORT_MAX: u64 = 16 << 10;

/// The most descriptors that are ever passed.
const FDS_MAX: usize = 4;

/// How long either side waits for bytes that the other has to send at once.
const STALL: Duration = Duration::from_secs(10);

/// What the new process says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "kebab-case")]
pub(crate) enum Report {
    /// It stands in a new user namespace and waits for its ids to be mapped from outside.
    AwaitsIds,
    /// This is the process that stays, by its number outside.
    Born {
        /// The number.
        pid: u32,
    },
    /// It is set up and goes on by itself.
    Ready,
    /// It could not be set up, and is gone.
    Failed(SetupFailure),
}

/// One cause of a failed setup.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("cannot {step}: {cause}")]
pub(crate) struct SetupFailure {
    /// What was being done, with its subject.
    pub(crate) step: String,
    /// What the system said.
    pub(crate) cause: String,
    /// Its error number, when it was the system.
    pub(crate) errno: Option<i32>,
}

impl SetupFailure {
    /// A step that failed with a system error.
    pub(crate) fn new(step: impl Into<String>, cause: impl Into<io::Error>) -> Self {
        let cause = cause.into();
        Self { step: step.into(), errno: cause.raw_os_error(), cause: cause.to_string() }
    }
}

/// The starter's end.
pub(crate) struct Starter {
    socket: BufReader<tokio::net::UnixStream>,
}

impl Starter {
    /// Both ends; the second becomes the new process's standard input.
    ///
    /// # Errors
    /// When no socket pair can be made.
    pub(crate) fn pair() -> io::Result<(UnixStream, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok((ours, theirs.into()))
    }

    /// Sends the specification and descriptors.
    ///
    /// # Errors
    /// When the new process is gone or does not read.
    pub(crate) fn send<S: Serialize>(ours: UnixStream, spec: &S, fds: &[BorrowedFd<'_>]) -> io::Result<Self> {
        ours.set_write_timeout(Some(STALL))?;
        let spec = serde_json::to_vec(spec).map_err(io::Error::other)?;
        let length = u32::try_from(spec.len()).ok().filter(|length| *length <= SPEC_MAX);
        let length = length.ok_or_else(|| io::Error::other("the specification is too long"))?.to_be_bytes();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::other("too many descriptors to pass"));
        }
        let sent = sendmsg(&ours, &[IoSlice::new(&length)], &mut control, SendFlags::NOSIGNAL)?;
        if sent != length.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        (&ours).write_all(&spec)?;
        ours.set_nonblocking(true)?;
        Ok(Self { socket: BufReader::new(tokio::net::UnixStream::from_std(ours)?) })
    }

    /// The next report; `None` when the new process went away without one.
    ///
    /// # Errors
    /// When it takes longer than ten seconds or is no report.
    pub(crate) async fn report(&mut self) -> io::Result<Option<Report>> {
        let mut line = Vec::new();
        let mut bounded = (&mut self.socket).take(REPORT_MAX);
        let read = bounded.read_until(b'\n', &mut line);
        match tokio::time::timeout(STALL, read).await {
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "it says nothing")),
            Ok(Ok(0)) => Ok(None),
            // The other end closes with our bytes unread when it dies early; that is an end as well.
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
            Ok(Err(error)) => Err(error),
            Ok(Ok(_)) => serde_json::from_slice(&line).map(Some).map_err(io::Error::other),
        }
    }

    /// Says that what the new process waited for is done.
    ///
    /// # Errors
    /// When it is gone.
    pub(crate) async fn go_on(&mut self) -> io::Result<()> {
        self.socket.write_all(&[1]).await
    }
}

/// The new process's end.
pub(crate) struct ChildEnd {
    socket: UnixStream,
}

impl ChildEnd {
    /// Takes the socket that is this process's standard input and reads what it was started for: waits as long as
    /// the starter lives, which may have much to do before it knows.
    ///
    /// # Errors
    /// When standard input is no such socket, or the starter is gone.
    pub(crate) fn receive<S: DeserializeOwned>() -> io::Result<(Self, S, Vec<OwnedFd>)> {
        let socket = UnixStream::from(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?);
        let mut length = [0; 4];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut buffers = [IoSliceMut::new(&mut length)];
        let message = recvmsg(&socket, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        if message.bytes != 4 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        let length = u32::from_be_bytes(length);
        if length > SPEC_MAX {
            return Err(io::Error::other("the specification is too long"));
        }
        socket.set_read_timeout(Some(STALL))?;
        let mut spec = vec![0; length as usize];
        (&socket).read_exact(&mut spec)?;
        let spec = serde_json::from_slice(&spec).map_err(io::Error::other)?;
        Ok((Self { socket }, spec, fds))
    }

    /// Tells the starter.
    ///
    /// # Errors
    /// When it is gone: then nobody knows of this process and it has to end.
    pub(crate) fn say(&self, report: &Report) -> io::Result<()> {
        let mut line = serde_json::to_vec(report).map_err(io::Error::other)?;
        line.push(b'\n');
        (&self.socket).write_all(&line)
    }

    /// Waits until the starter did what was asked for.
    ///
    /// # Errors
    /// When it is gone.
    pub(crate) fn wait(&self) -> io::Result<()> {
        (&self.socket).read_exact(&mut [0])
    }

    /// Says that all is well, lets go of the starter, and empties standard input.
    ///
    /// # Errors
    /// As [`ChildEnd::say`].
    pub(crate) fn ready(self, null: impl AsFd) -> io::Result<()> {
        rustix::stdio::dup2_stdin(null)?;
        self.say(&Report::Ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_starter_sees_reports_in_order_and_the_end_of_a_process_that_dies() {
        let (ours, theirs) = Starter::pair().expect("pair");
        let mut starter = Starter::send(ours, &"spec", &[]).expect("sent");
        let child_end = ChildEnd { socket: theirs.into() };
        let mut sent = [0; 10];
        (&child_end.socket).read_exact(&mut sent).expect("length and specification");
        assert_eq!(&sent, b"\0\0\0\x06\"spec\"");

        let failure = SetupFailure::new("mount /usr", io::Error::from_raw_os_error(1));
        child_end.say(&Report::Born { pid: 7 }).expect("said");
        child_end.say(&Report::Failed(failure.clone())).expect("said");
        drop(child_end);
        assert_eq!(starter.report().await.expect("first"), Some(Report::Born { pid: 7 }));
        assert_eq!(starter.report().await.expect("second"), Some(Report::Failed(failure)));
        assert_eq!(starter.report().await.expect("end"), None);
    }

    #[tokio::test]
    async fn a_specification_beyond_its_bound_is_not_sent() {
        let (ours, _theirs) = Starter::pair().expect("pair");
        let long = "x".repeat(SPEC_MAX as usize);
        assert!(Starter::send(ours, &long, &[]).is_err());
    }
}
