//! Every bound and deadline of the proxy, with its reason.
//!
//! Bytes from the bottle are hostile and bytes from upstream are untrusted: every read has a deadline and every buffer
//! a limit. At a bound the proxy closes or denies; it never passes something unscanned.

use std::time::Duration;

/// Concurrent connections from the bottle. Further ones queue in the listener: a flood stalls the bottle that sends
/// it and costs the host nothing else. Browsers and build tools stay below 200.
pub(crate) const CONNECTIONS: usize = 512;

/// Concurrent requests over all connections; further ones queue. Times [`WINDOW`] this is the most memory that
/// clients can pin by not reading.
pub(crate) const REQUESTS: usize = 512;

/// Deadline for the first byte, and again for the rest of the TLS `ClientHello`. Local clients send both at once; long
/// enough for a machine that swaps.
pub(crate) const HELLO_WITHIN: Duration = Duration::from_secs(10);

/// Bytes of a TLS `ClientHello`, over all its records. Post-quantum key shares need 1.8 KiB, old clients with tickets
/// 4 KiB.
pub(crate) const HELLO_BYTES: usize = 32 * 1024;

/// Deadline of a TLS handshake after its `ClientHello`.
pub(crate) const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);

/// Deadline of a request's headers. On a keep-alive connection it is also the idle timeout, which is why it is not
/// shorter.
pub(crate) const HEADERS_WITHIN: Duration = Duration::from_secs(75);

/// Bytes of a request's headers (cookies and tracing reach 16 KiB in practice).
pub(crate) const HEADER_BYTES: usize = 96 * 1024;

/// Headers of one request.
pub(crate) const HEADERS: usize = 256;

/// Idle timeout of a request body while the proxy reads it.
pub(crate) const REQUEST_BODY_IDLE: Duration = Duration::from_secs(120);

/// Bytes of a denied request that the proxy still reads, so that its sender reads the response. The first request of
/// a coding agent has about 100 KB.
pub(crate) const DRAIN_BYTES: usize = 4 << 20;

/// Deadline of that draining.
pub(crate) const DRAIN_WITHIN: Duration = Duration::from_secs(5);

/// How long a write to the bottle may stall: the client has stopped reading.
pub(crate) const WRITE_STALL: Duration = Duration::from_secs(300);

/// Concurrent HTTP/2 streams of one connection.
pub(crate) const STREAMS: u32 = 128;

/// HTTP/2 streams that the client reset before the proxy accepted them (CVE-2023-44487, rapid reset).
pub(crate) const PENDING_RESETS: usize = 20;

/// HTTP/2 streams that the proxy resets for protocol errors before it closes the connection (CVE-2025-8671,
/// made-you-reset).
pub(crate) const LOCAL_RESETS: usize = 128;

/// HTTP/2 flow-control window of a stream, in each direction.
pub(crate) const WINDOW: u32 = 256 * 1024;

/// HTTP/2 flow-control window of a connection, in each direction.
pub(crate) const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Interval of HTTP/2 keep-alive pings.
pub(crate) const PING_EVERY: Duration = Duration::from_secs(60);

/// Deadline of a ping's acknowledgement.
pub(crate) const PING_WITHIN: Duration = Duration::from_secs(20);

/// Idle timeout of a tunnel (a WebSocket, or TLS passthrough). WebSocket clients ping every 20 to 60 s; a quiet client
/// with certificate pinning may pause for longer.
pub(crate) const TUNNEL_IDLE: Duration = Duration::from_secs(3600);

/// Bytes of one WebSocket message, which is scanned whole before any of it is forwarded. Realtime audio comes in
/// chunks of some 100 KB.
pub(crate) const MESSAGE_BYTES: usize = 16 << 20;

/// Deadline for sending the close frames of a WebSocket.
pub(crate) const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// Deadline of one name look-up.
pub(crate) const RESOLVE_WITHIN: Duration = Duration::from_secs(10);

/// Deadline of connecting to one address.
pub(crate) const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Addresses of one name that the proxy tries.
pub(crate) const ADDRESSES: usize = 4;

/// From a sent request to the head of its response. Models that think without streaming take more than ten minutes.
pub(crate) const RESPONSE_WITHIN: Duration = Duration::from_secs(30 * 60);

/// Idle timeout of a response body; event streams send comments far more often.
pub(crate) const RESPONSE_BODY_IDLE: Duration = Duration::from_secs(15 * 60);

/// Idle timeout of a pooled upstream connection.
pub(crate) const UPSTREAM_IDLE: Duration = Duration::from_secs(60);

/// Idle HTTP/1.1 connections pooled for one target.
pub(crate) const UPSTREAM_IDLE_CONNECTIONS: usize = 32;

/// Bytes of the response of `egress.upstream_proxy` to a CONNECT.
pub(crate) const PROXY_ANSWER_BYTES: usize = 16 * 1024;

/// Cached leaf certificates; a bottle that connects to more names pays for minting again.
pub(crate) const LEAVES: u64 = 1024;

/// Events buffered while the parent does not read them.
pub(crate) const EVENTS: usize = 1024;

/// Log lines queued for the disk. Further lines are counted and dropped; requests never wait.
pub(crate) const LOG_LINES: usize = 1024;

/// Bytes of a body in a log line at level `full`.
pub(crate) const LOG_BODY_BYTES: usize = 16 * 1024;

/// Files of the log's ring.
pub(crate) const LOG_FILES: u64 = 4;

/// Usage records buffered without a keeper: a busy agent makes 5,000 in a night. A record is some 300 bytes.
pub(crate) const USAGE_RECORDS: usize = 64 * 1024;

/// Usage records of one message.
pub(crate) const USAGE_BATCH: usize = 64;

/// Bytes of the file of pending records above which it is rewritten without the delivered ones.
pub(crate) const USAGE_FILE: u64 = 32 << 20;

/// How long shutdown waits for a keeper to acknowledge the usage records; allows for a slow disk.
pub(crate) const USAGE_TAKEN_WITHIN: Duration = Duration::from_secs(1);
