//! Limits and deadlines of the proxy's connections, requests, logs and usage records, with the reason for each value.
//! The limits of scans are in the modules that scan.
//!
//! Bytes from the bottle are hostile and bytes from upstream are untrusted, so every read has a deadline and every
//! buffer has a limit. If a read exceeds its deadline or its limit, the proxy closes the connection or denies the
//! request. It never forwards unscanned bytes instead.

use std::time::Duration;

/// Maximum number of concurrent connections from the bottle. Further connections wait in the listener's queue, so a
/// flood stalls only the bottle that causes it. Browsers and build tools need fewer than 200.
pub(crate) const CONNECTIONS: usize = 512;

/// Maximum number of allowed requests in progress over all connections. A request is in progress from the scan of its
/// body to the end of its response. Further requests wait. Clients that do not read their responses can occupy at most
/// this number times [`WINDOW`] bytes of memory. Clients that do not end their request bodies can occupy at most this
/// number times the memory for scanning and buffering one body.
pub(crate) const REQUESTS: usize = 512;

/// Maximum number of allowed requests that wait while [`REQUESTS`] other requests are in progress. The proxy denies
/// further requests, because a waiting request keeps its head in memory, and clients can open [`CONNECTIONS`] times
/// [`STREAMS`] requests.
pub(crate) const WAITING_REQUESTS: usize = 1024;

/// Deadline for the first byte of a connection, and separately for the rest of the TLS `ClientHello`. Local clients
/// send the complete `ClientHello` immediately; the value allows for a slow machine that is swapping.
pub(crate) const HELLO_WITHIN: Duration = Duration::from_secs(10);

/// Maximum size of a TLS `ClientHello` over all its records, in bytes. Post-quantum key shares need 1.8 KiB, old
/// clients with session tickets 4 KiB.
pub(crate) const HELLO_BYTES: usize = 32 * 1024;

/// Deadline for the rest of a TLS handshake after the `ClientHello`.
pub(crate) const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);

/// Deadline for a request's headers. The deadline is not shorter because it is also the idle timeout of a keep-alive
/// connection.
pub(crate) const HEADERS_WITHIN: Duration = Duration::from_secs(75);

/// Maximum size of the headers of a request or response, in bytes (cookies and tracing headers reach 16 KiB in
/// practice). The proxy rejects longer headers.
pub(crate) const HEADER_BYTES: usize = 96 * 1024;

/// Maximum number of headers in one request, or in one response of HTTP/1.1. The proxy rejects a head with more
/// headers. In HTTP/2, one byte can encode a header that repeats an earlier long header. In memory, such a header takes
/// more than 100 bytes.
pub(crate) const HEADERS: usize = 256;

/// Idle timeout of a request body while the proxy reads it. The request fails if no chunk arrives for this long.
pub(crate) const REQUEST_BODY_IDLE: Duration = Duration::from_secs(120);

/// Maximum number of bytes of a denied request's body that the proxy still reads, so that the client can read the
/// response. If the body is longer, the proxy closes the connection. The first request of a coding agent has about 100
/// KB.
pub(crate) const DRAIN_BYTES: usize = 4 << 20;

/// Deadline for reading the body of a denied request ([`DRAIN_BYTES`]).
pub(crate) const DRAIN_WITHIN: Duration = Duration::from_secs(5);

/// How long a write to the bottle may stall before the proxy closes the connection, because the client has stopped
/// reading.
pub(crate) const WRITE_STALL: Duration = Duration::from_secs(300);

/// Maximum number of concurrent HTTP/2 streams of one connection from the bottle. Further streams are refused.
pub(crate) const STREAMS: u32 = 128;

/// Maximum number of HTTP/2 streams that the client resets before the proxy accepts them. The proxy closes a connection
/// with more such streams (CVE-2023-44487, rapid reset).
pub(crate) const PENDING_RESETS: usize = 20;

/// Number of HTTP/2 streams that the proxy resets for protocol errors before it closes the connection (CVE-2025-8671,
/// made-you-reset).
pub(crate) const LOCAL_RESETS: usize = 128;

/// HTTP/2 flow-control window of a stream, in bytes in each direction.
pub(crate) const WINDOW: u32 = 256 * 1024;

/// HTTP/2 flow-control window of a connection, in bytes in each direction.
pub(crate) const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// Interval of HTTP/2 keep-alive pings.
pub(crate) const PING_EVERY: Duration = Duration::from_secs(60);

/// Deadline for the acknowledgement of an HTTP/2 ping. After the deadline, the proxy closes the connection.
pub(crate) const PING_WITHIN: Duration = Duration::from_secs(20);

/// Idle timeout of a tunnel (a WebSocket, or TLS passthrough), after which the proxy closes it. WebSocket clients send
/// pings every 20 to 60 s; a client with certificate pinning may be silent for longer.
pub(crate) const TUNNEL_IDLE: Duration = Duration::from_secs(3600);

/// Maximum number of requests to models that the proxy parses concurrently. Further requests wait. Parsing a request
/// takes milliseconds, and up to 64 MiB of memory if the body has the maximum length and is compressed or on disk.
pub(crate) const READINGS: usize = 2;

/// Maximum number of requests for which the proxy concurrently asks the provider to count the tokens. The proxy
/// estimates the tokens of further requests. The text of a prompt is in memory until the provider answers.
pub(crate) const COUNTS: usize = 8;

/// How long the proxy waits for the provider to count the tokens of a prompt.
pub(crate) const COUNT_WITHIN: Duration = Duration::from_secs(5);

/// Maximum size of the provider's answer with the number of tokens, in bytes.
pub(crate) const COUNT_BYTES: usize = 16 << 10;

/// Maximum size of a request for which the proxy asks the provider to count the tokens, in bytes. The proxy estimates
/// the tokens of longer requests.
pub(crate) const COUNTED_PROMPT: usize = 32 << 20;

/// Maximum size of one WebSocket message, in bytes. A longer message closes the WebSocket. The proxy scans the complete
/// message before it forwards any of it. Realtime audio comes in chunks of about 100 KB.
pub(crate) const MESSAGE_BYTES: usize = 16 << 20;

/// Deadline for sending the close frames of a WebSocket.
pub(crate) const CLOSE_WITHIN: Duration = Duration::from_secs(5);

/// Deadline for resolving one name. After the deadline, the client receives status 502.
pub(crate) const RESOLVE_WITHIN: Duration = Duration::from_secs(10);

/// Deadline for connecting to one address. After the deadline, the proxy tries the next address.
pub(crate) const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// How long an upstream connection may be idle before the kernel probes whether the server's machine still answers.
pub(crate) const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);

/// Interval of the kernel's probes ([`KEEPALIVE_AFTER`]).
pub(crate) const KEEPALIVE_EVERY: Duration = Duration::from_secs(15);

/// Number of unanswered probes after which the kernel closes the connection. The kernel also closes a connection if
/// sent bytes stay unacknowledged for the total time of these probes.
pub(crate) const KEEPALIVE_PROBES: u32 = 4;

/// Maximum number of addresses of one name that the proxy tries to connect to. Further addresses are ignored.
pub(crate) const ADDRESSES: usize = 4;

/// Deadline between sending a request and receiving the head of its response. After the deadline, the client receives
/// status 502. A model that does not stream while it thinks can take more than ten minutes.
pub(crate) const RESPONSE_WITHIN: Duration = Duration::from_secs(30 * 60);

/// Idle timeout of a response body. The proxy aborts the response if no chunk arrives for this long. Servers of event
/// streams send comments much more often.
pub(crate) const RESPONSE_BODY_IDLE: Duration = Duration::from_secs(15 * 60);

/// Idle timeout of a pooled upstream connection, after which the proxy closes it.
pub(crate) const UPSTREAM_IDLE: Duration = Duration::from_secs(60);

/// Maximum number of idle HTTP/1.1 connections in the pool for one target. Further connections are closed after their
/// response.
pub(crate) const UPSTREAM_IDLE_CONNECTIONS: usize = 32;

/// Maximum number of open HTTP/2 connections to one target. The proxy opens another connection when the server's limit
/// of concurrent streams is reached. With this many connections, further requests wait. Servers allow about 100 streams
/// on one connection.
pub(crate) const UPSTREAM_HTTP2_CONNECTIONS: usize = 8;

/// The assumed limit of streams of a new HTTP/2 connection before the server has announced its limit. RFC 9113
/// recommends that servers allow at least 100. Servers announce round numbers. So a limit of exactly this number means
/// that the server has not announced its limit yet.
pub(crate) const STREAMS_ASSUMED: usize = 101;

/// How long requests wait for the server of a new HTTP/2 connection to announce its limit of streams. The first request
/// on the connection does not wait. Servers announce the limit immediately.
pub(crate) const SETTINGS_WITHIN: Duration = Duration::from_secs(1);

/// Bytes of a request body that the proxy keeps until a response arrives, so that it can send the request again over
/// another connection. After more bytes than this were sent, the proxy does not send the request again.
pub(crate) const REPLAY_BYTES: usize = WINDOW as usize;

/// Maximum number of interim responses (1xx) before the final response. Servers send one or two.
pub(crate) const INTERIM_RESPONSES: usize = 64;

/// Number of HTTP/2 streams of a connection for which interim responses are counted. Servers allow fewer concurrent
/// streams.
pub(crate) const INTERIM_STREAMS: usize = 1024;

/// Maximum size of the response of `egress.upstream_proxy` to a CONNECT, in bytes. With a longer response, the request
/// fails.
pub(crate) const PROXY_ANSWER_BYTES: usize = 16 * 1024;

/// Number of cached leaf certificates. If a bottle connects to more names, the proxy evicts certificates from the cache
/// and issues new ones when they are needed.
pub(crate) const LEAVES: u64 = 1024;

/// Maximum number of events buffered while the parent process does not read them. When the buffer is full, the oldest
/// event is dropped and counted.
pub(crate) const EVENTS: usize = 1024;

/// Maximum number of log lines that are queued for writing. Further lines are counted and dropped, so that requests
/// never wait for the disk.
pub(crate) const LOG_LINES: usize = 1024;

/// Maximum size, in bytes, of all log lines queued for a keeper process. If the queue exceeds this size, the oldest
/// lines are dropped and counted. While no keeper is connected, the queue has room for some hours at level `full`, and
/// for a night at level `blocks`.
pub(crate) const LOG_QUEUE_BYTES: usize = 8 << 20;

/// Maximum total size of the log lines in one message, in bytes. This is also the maximum size of one line. A line that
/// is encoded as a JSON string is at most twice as long, and still fits into a message.
pub(crate) const LOG_BATCH_BYTES: usize = 256 << 10;

/// How long the shutdown waits until this process or a keeper process has written the queued log lines.
pub(crate) const LOG_TAKEN_WITHIN: Duration = Duration::from_secs(1);

/// Maximum number of bytes of a body that are logged at level `full`. The rest of the body is not logged.
pub(crate) const LOG_BODY_BYTES: usize = 16 * 1024;

/// Number of log files. Rotation overwrites the oldest file.
pub(crate) const LOG_FILES: u64 = 4;

/// Maximum number of usage records buffered while no keeper process collects them. Further records are counted and
/// dropped. A busy agent produces 5,000 records in a night. One record has about 300 bytes.
pub(crate) const USAGE_RECORDS: usize = 64 * 1024;

/// Maximum number of usage records in one message.
pub(crate) const USAGE_BATCH: usize = 64;

/// If the file of uncollected usage records is longer than this number of bytes, the proxy rewrites the file without
/// the delivered records.
pub(crate) const USAGE_FILE: u64 = 32 << 20;

/// How long the proxy waits for further usage records before it sends the first one, so that it can send them in one
/// message.
pub(crate) const USAGE_GATHERED_WITHIN: Duration = Duration::from_millis(20);

/// How long a usage record may stay unacknowledged before the proxy syncs the file that contains the record. A
/// connected keeper acknowledges records within this time.
pub(crate) const USAGE_SYNCED_WITHIN: Duration = Duration::from_millis(100);

/// How long the shutdown waits for a keeper process to acknowledge the usage records. Records without an
/// acknowledgement remain in their file. The deadline allows for a slow disk.
pub(crate) const USAGE_TAKEN_WITHIN: Duration = Duration::from_secs(1);

/// How long a request waits for a lease on a budget while no keeper process is connected. A command that needs the
/// bottle starts a new keeper within a second.
pub(crate) const LEASE_WITHOUT_KEEPER: Duration = Duration::from_secs(30);

/// How long the proxy uses the keeper's answer that no budget limits a host. After this time, the proxy asks the keeper
/// again, but requests do not wait for the new answer. So this time bounds how long a new budget has no effect.
pub(crate) const LEASE_REFRESH: Duration = Duration::from_secs(30);

/// How long a lease stays unused before the proxy returns it to the keeper, so that other bottles can use the tokens.
pub(crate) const LEASE_IDLE: Duration = Duration::from_secs(30);

/// How long a request waits for more tokens before the proxy returns the available tokens of the lease to the keeper,
/// so that another bottle can use these tokens. Otherwise two bottles could wait for each other's tokens.
pub(crate) const LEASE_SHARED_AFTER: Duration = Duration::from_secs(2);

/// Maximum number of requests that wait for the same lease.
pub(crate) const LEASE_WAITING: usize = 512;

/// Maximum number of hosts for which the proxy keeps leases.
pub(crate) const LEASE_KEYS: usize = 256;
