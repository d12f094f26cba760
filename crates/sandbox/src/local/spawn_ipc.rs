//! Sends a specification to a new process and receives its setup reports.
//!
//! The standard input of the new process is one end of a socket pair. Through this socket, the new process receives a
//! length, the specification as JSON, and file descriptors. It sends each [`Report`] as one line of JSON. The command
//! line and the environment therefore contain no data of the specification, and the new process does not have to know
//! inherited descriptors by their numbers. If either process exits, the stream ends.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bottle_host::causes;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

/// The size limit of a specification in bytes. A longer specification is not sent, and the start fails. A specification
/// within the limit can have a few thousand exposed paths.
const SPEC_MAX: u32 = 1 << 20;

/// The maximum number of bytes read of a report. A longer report cannot be parsed, and the start fails.
const REPORT_MAX: u64 = 16 << 10;

/// The maximum number of descriptors that can be sent with a specification. Sending more descriptors fails.
const FDS_MAX: usize = 4;

/// How long a process waits for bytes that the other process should send without delay. After this time, the start
/// fails.
const STALL: Duration = Duration::from_secs(10);

/// A setup report of the new process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "kebab-case")]
pub(crate) enum Report {
    /// The process is in a new user namespace and waits until its ids are mapped from outside.
    AwaitsIds,
    /// The final process, which runs the guest or the bundle, has been started.
    #[serde(rename = "born")]
    Started {
        /// The id of the final process, outside its pid namespace.
        pid: u32,
    },
    /// The setup is complete, and the process no longer needs the process that started it.
    Ready,
    /// The setup failed, and the process is about to exit.
    Failed(SetupFailure),
}

/// A part of a setup whose failures have specific fixes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SetupPart {
    /// Creating the namespaces and mapping the ids of the user namespace.
    Namespaces,
    /// Mounting `/proc`.
    Proc,
    /// Mounting the overlay over an image.
    Overlay,
    /// Any other part.
    #[default]
    Other,
}

/// The failure of a process's setup.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("cannot {step}: {cause}")]
pub(crate) struct SetupFailure {
    /// The part of the setup to which the step belongs.
    #[serde(default)]
    pub(crate) part: SetupPart,
    /// The step that failed, with its object.
    pub(crate) step: String,
    /// The message of the error that made the step fail.
    pub(crate) cause: String,
    /// The error number, if the cause is a system error.
    pub(crate) errno: Option<i32>,
}

impl SetupFailure {
    /// Creates the failure of a step from a system error.
    pub(crate) fn new(step: impl Into<String>, cause: impl Into<io::Error>) -> Self {
        let cause = cause.into();
        let part = SetupPart::Other;
        Self { part, step: step.into(), errno: cause.raw_os_error(), cause: causes::one_line(&cause) }
    }
}

/// The end of the socket pair in the process that starts the new process.
pub(crate) struct Starter {
    socket: BufReader<tokio::net::UnixStream>,
}

impl Starter {
    /// Creates the socket pair. The second end becomes the standard input of the new process.
    ///
    /// # Errors
    /// When the socket pair cannot be created.
    pub(crate) fn pair() -> io::Result<(UnixStream, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok((ours, theirs.into()))
    }

    /// Sends the specification and the descriptors.
    ///
    /// # Errors
    /// When the new process has exited or does not read.
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

    /// Returns the next report, or `None` if the new process exited without sending another report.
    ///
    /// # Errors
    /// When the report takes longer than ten seconds or cannot be parsed.
    pub(crate) async fn next_report(&mut self) -> io::Result<Option<Report>> {
        let mut line = Vec::new();
        let mut bounded = (&mut self.socket).take(REPORT_MAX);
        let read = bounded.read_until(b'\n', &mut line);
        match tokio::time::timeout(STALL, read).await {
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "no report in time")),
            Ok(Ok(0)) => Ok(None),
            // The process exited before it had read the specification.
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
            Ok(Err(error)) => Err(error),
            Ok(Ok(_)) => serde_json::from_slice(&line).map(Some).map_err(io::Error::other),
        }
    }

    /// Tells the new process, which waits in [`ChildEnd::wait`], to continue.
    ///
    /// # Errors
    /// When the process has exited.
    pub(crate) async fn proceed(&mut self) -> io::Result<()> {
        self.socket.write_all(&[1]).await
    }
}

/// The end of the socket pair in the new process.
pub(crate) struct ChildEnd {
    socket: UnixStream,
}

impl ChildEnd {
    /// Reads the specification and the descriptors from the socket on standard input. Waits without a time limit while
    /// the starting process exists, because preparing the specification may take long.
    ///
    /// # Errors
    /// When standard input is not the socket of a [`Starter`], or the starting process has exited.
    pub(crate) fn receive<S: DeserializeOwned>() -> io::Result<(Self, S, Vec<OwnedFd>)> {
        Self::receive_from(UnixStream::from(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?))
    }

    /// Like [`ChildEnd::receive`], but reads from a connected socket.
    ///
    /// # Errors
    /// The errors of [`ChildEnd::receive`].
    pub(crate) fn receive_from<S: DeserializeOwned>(
        socket: UnixStream,
    ) -> io::Result<(Self, S, Vec<OwnedFd>)> {
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

    /// Sends a report to the starting process.
    ///
    /// # Errors
    /// When the starting process has exited. This process must then exit, because no process has recorded it.
    pub(crate) fn report(&self, report: &Report) -> io::Result<()> {
        let mut line = serde_json::to_vec(report).map_err(io::Error::other)?;
        line.push(b'\n');
        (&self.socket).write_all(&line)
    }

    /// Waits until the starting process tells this process to continue.
    ///
    /// # Errors
    /// When the starting process has exited.
    pub(crate) fn wait(&self) -> io::Result<()> {
        (&self.socket).read_exact(&mut [0])
    }

    /// Reports that the setup is complete, and replaces standard input with `null`.
    ///
    /// # Errors
    /// The errors of [`ChildEnd::report`].
    pub(crate) fn ready(self, null: impl AsFd) -> io::Result<()> {
        rustix::stdio::dup2_stdin(null)?;
        self.report(&Report::Ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_starter_receives_reports_in_order_and_the_end_of_an_exited_process() {
        let (ours, theirs) = Starter::pair().expect("pair");
        let mut starter = Starter::send(ours, &"spec", &[]).expect("sent");
        let child_end = ChildEnd { socket: theirs.into() };
        let mut sent = [0; 10];
        (&child_end.socket).read_exact(&mut sent).expect("length and specification");
        assert_eq!(&sent, b"\0\0\0\x06\"spec\"");

        let failure = SetupFailure::new("mount /usr", io::Error::from_raw_os_error(1));
        child_end.report(&Report::Started { pid: 7 }).expect("said");
        child_end.report(&Report::Failed(failure.clone())).expect("said");
        drop(child_end);
        assert_eq!(starter.next_report().await.expect("first"), Some(Report::Started { pid: 7 }));
        assert_eq!(starter.next_report().await.expect("second"), Some(Report::Failed(failure)));
        assert_eq!(starter.next_report().await.expect("end"), None);
    }

    #[tokio::test]
    async fn refuses_to_send_an_oversized_specification() {
        let (ours, _theirs) = Starter::pair().expect("pair");
        let long = "x".repeat(SPEC_MAX as usize);
        assert!(Starter::send(ours, &long, &[]).is_err());
    }
}
