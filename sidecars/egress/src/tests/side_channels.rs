//! Side channels: a bottle and an allowed host may cooperate to guess a credential. They must learn nothing from
//! arrival times, from the verdicts of requests, or from the duration of requests.
//!
//! In each attack, every request contains one guess: a known prefix of the secret, followed by the right next character
//! or by a wrong character. The tests estimate the mutual information between the observation and the guess. The
//! estimate must stay below [`SIGNAL`]. `BOTTLE_ORACLE_REQUESTS` sets the number of guesses (default [`GUESSES`]);
//! `--nocapture` prints the estimates.

use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bottle_policy::credential::{Binding, Scheme};
use bottle_protocol::session::bundle::{Credential, Provision};
use bottle_test_support::authority::{Alpn, Authority, Leaf};
use bottle_test_support::body::{Body, Pace, paced, whole};
use bottle_test_support::server::{Server, handler};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio_tungstenite::tungstenite::Message;

use super::client::{get, http1, tunnel};
use super::fixture::{AUTH, FixtureOptions, ProxyFixture, SITE};

/// The default number of guesses in each attack.
const GUESSES: usize = 240;
/// The maximum estimate of the information that an observation reveals, in bits per guess. In a run with the default
/// number of guesses, the estimate is 0.05 if an observation reveals nothing.
const SIGNAL: f64 = 0.15;
/// Number of concurrent guesses.
const AT_ONCE: usize = 24;
/// The pause between two chunks of a streamed response. The pause is longer than the time for which the proxy may
/// withhold a byte.
const PAUSE: Duration = Duration::from_millis(60);

/// A host that has a route without a credential.
const LISTED: &str = "listed.example.org";
/// The credential of [`SITE`].
const SECRET: &str = "Zq7Kd93vXwpT2mB8ySe4Lh5Rf0Nc";
/// The number of characters of the secret that the attacker knows. A real attacker can learn fewer characters, and the
/// scanner searches for more characters.
const KNOWN: usize = 7;
/// The number of known characters in timing attacks. The scanner's search works on units of eight consecutive
/// characters.
const KNOWN_IN_TIME: usize = 6;

fn guesses() -> usize {
    std::env::var("BOTTLE_ORACLE_REQUESTS").ok().and_then(|count| count.parse().ok()).unwrap_or(GUESSES)
}

/// Returns the first `known` characters of the secret, followed by the right next character or by a wrong character.
fn guess_after(known: usize, right: bool) -> String {
    let next = SECRET.as_bytes()[known];
    let next = if right { next } else { b'a' + (next.wrapping_sub(b'a').wrapping_add(7)) % 26 };
    format!("{}{}", &SECRET[..known], char::from(next))
}

fn guess(right: bool) -> String {
    guess_after(KNOWN, right)
}

/// How a host encodes its response stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Events,
    Gzip,
    Brotli,
    Zstd,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Plain, Self::Events, Self::Gzip, Self::Brotli, Self::Zstd];

    fn coding(self) -> Option<&'static str> {
        match self {
            Self::Plain | Self::Events => None,
            Self::Gzip => Some("gzip"),
            Self::Brotli => Some("br"),
            Self::Zstd => Some("zstd"),
        }
    }

    /// Returns three chunks: a first line, a chunk that ends with the guess, and the rest.
    fn pieces(self, guess: &str) -> Vec<Bytes> {
        let text = ["data: begins\n\n".to_owned(), format!("data: {guess}"), "\n\ndata: ends\n\n".to_owned()];
        let pieces = text.iter().map(String::as_bytes);
        match self {
            Self::Plain | Self::Events => pieces.map(Bytes::copy_from_slice).collect(),
            Self::Gzip => gzip(pieces),
            Self::Brotli => stored(pieces, &[], brotli_block, &[0x03]),
            // The head consists of the magic number and the header of a frame without a content size and with a window
            // of 1 KiB. The stream ends with an empty raw block.
            Self::Zstd => stored(pieces, &[0x28, 0xb5, 0x2f, 0xfd, 0, 0], zstd_block, &[1, 0, 0]),
        }
    }
}

/// Compresses the chunks and flushes after each one, so that each chunk can be decoded when it arrives.
fn gzip<'t>(pieces: impl Iterator<Item = &'t [u8]>) -> Vec<Bytes> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    let mut coded: Vec<Vec<u8>> = Vec::new();
    for piece in pieces {
        writer.write_all(piece).expect("write");
        writer.flush().expect("flush");
        coded.push(std::mem::take(writer.get_mut()));
    }
    let end = writer.finish().expect("finish");
    coded.last_mut().expect("pieces").extend(end);
    coded.into_iter().map(Bytes::from).collect()
}

/// Encodes the chunks in stored blocks.
fn stored<'t>(
    pieces: impl Iterator<Item = &'t [u8]>,
    head: &[u8],
    block: fn(usize, &[u8]) -> Vec<u8>,
    end: &[u8],
) -> Vec<Bytes> {
    let mut coded: Vec<Vec<u8>> = pieces.enumerate().map(|(number, piece)| block(number, piece)).collect();
    coded[0].splice(0..0, head.iter().copied());
    coded.last_mut().expect("pieces").extend(end);
    coded.into_iter().map(Bytes::from).collect()
}

/// Returns an uncompressed meta-block (RFC 7932, 9.2). The window size, a single zero bit, precedes the first
/// meta-block.
fn brotli_block(number: usize, piece: &[u8]) -> Vec<u8> {
    let length = u32::try_from(piece.len() - 1).expect("short");
    // The header says: not the last meta-block, four nibbles of length, uncompressed. The lowest bits come first.
    let bits = (length << 3) | (1 << 19);
    let bits = if number == 0 { bits << 1 } else { bits };
    [&bits.to_le_bytes()[..3], piece].concat()
}

/// Returns a raw block that is not the last block (RFC 8878, 3.1.1.2).
fn zstd_block(_: usize, piece: &[u8]) -> Vec<u8> {
    let bits = u32::try_from(piece.len()).expect("short") << 3;
    [&bits.to_le_bytes()[..3], piece].concat()
}

/// Starts the host. The host streams the response that the path selects, or echoes the request body.
fn site(authority: &Authority) -> Server {
    let tls = authority.server_config(&[SITE, LISTED], Leaf::Valid, Alpn::Http1).expect("config");
    let answer = handler(Arc::new(()), |_, request: Request<Incoming>| async move {
        let path = request.uri().path().to_owned();
        if path == "/none" {
            request.into_body().collect().await.ok()?;
            return Some(Response::new(whole("fine\n")));
        }
        if path == "/echo" {
            return Some(Response::new(whole(request.into_body().collect().await.ok()?.to_bytes())));
        }
        let (kind, guess) = path.trim_start_matches('/').split_once('/')?;
        let kind = *Kind::ALL.iter().find(|known| format!("{known:?}") == kind)?;
        Some(streamed(kind, guess))
    });
    Server::start(0, Some(tls), answer).expect("server")
}

fn streamed(kind: Kind, guess: &str) -> Response<Body> {
    let pace = Pace { delay: PAUSE, cut_after: None };
    let mut response = Response::new(paced(kind.pieces(guess), pace));
    let media = if kind == Kind::Plain { "text/plain" } else { "text/event-stream" };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
    if let Some(coding) = kind.coding() {
        response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static(coding));
    }
    response
}

struct Setup {
    proxy: Arc<ProxyFixture>,
    _site: Server,
}

async fn setup() -> Setup {
    let authority = Authority::new("oracle").expect("authority");
    let site = site(&authority);
    let to = format!("connect_to: '127.0.0.1:{}'", site.address().port());
    let yaml = format!("routes:\n- host: {SITE}\n  {to}\n  {AUTH}\n- host: {LISTED}\n  {to}\n");
    let proxy = ProxyFixture::with_routes(authority.pem(), yaml, |provision| {
        set_credential(provision, "key", Scheme::Bearer, SECRET);
    });
    Setup { proxy: Arc::new(proxy.await), _site: site }
}

fn set_credential(provision: &mut Provision, slot: &str, scheme: Scheme, value: &str) {
    let binding = Binding { slot: slot.into(), host: SITE.into(), scheme, header: "authorization".into() };
    provision.credentials = vec![Credential { binding, value: Some(value.into()) }];
}

/// Returns the time from the first piece of a response to the last byte of the guess, in milliseconds.
async fn arrival(proxy: &ProxyFixture, host: &str, kind: Kind, guess: &str) -> f64 {
    let pieces = kind.pieces(guess);
    let (first, second) = (pieces[0].len(), pieces[0].len() + pieces[1].len());
    let request = get(host, &format!("/{kind:?}/{guess}"));
    let mut body = http1(proxy, host).await.send_request(request).await.expect("answer").into_body();
    let (mut received_bytes, mut began, mut ended) = (0, None, None);
    while let Some(frame) = body.frame().await {
        received_bytes += frame.expect("frame").data_ref().map_or(0, Bytes::len);
        let now = Instant::now();
        began = began.or((received_bytes >= first).then_some(now));
        ended = ended.or((received_bytes >= second).then_some(now));
    }
    let (began, ended) = (began.expect("a first piece"), ended.expect("the guess"));
    (ended - began).as_secs_f64() * 1000.0
}

/// Makes right and wrong guesses in random order. Returns the observation for each guess.
async fn observe<F, R>(attack: F) -> Vec<(bool, f64)>
where
    F: Fn(bool) -> R,
    R: Future<Output = f64>,
{
    let order: Vec<bool> = (0..guesses()).map(|_| rand::random()).collect();
    futures_util::stream::iter(order)
        .map(|right| {
            let observed = attack(right);
            async move { (right, observed.await) }
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await
}

/// Returns how many bits an observation reveals per guess. The estimate divides the observations into eight classes,
/// with equal observations in the same class. It subtracts the bias with the Miller-Madow correction.
fn information(observed: &[(bool, f64)]) -> f64 {
    const CLASSES: usize = 8;
    let mut sorted: Vec<f64> = observed.iter().map(|(_, value)| *value).collect();
    sorted.sort_by(f64::total_cmp);
    let mut bounds: Vec<f64> = (1..CLASSES).map(|n| sorted[n * sorted.len() / CLASSES]).collect();
    bounds.dedup();
    let mut counts = vec![[0_usize; 2]; bounds.len() + 1];
    for (right, value) in observed {
        counts[bounds.partition_point(|bound| bound <= value)][usize::from(*right)] += 1;
    }
    counts.retain(|class| class[0] + class[1] > 0);
    let all = observed.len() as f64;
    let sides = [0, 1].map(|side| counts.iter().map(|class| class[side]).sum::<usize>() as f64);
    let bits: f64 = counts
        .iter()
        .flat_map(|class| [0, 1].map(|side| (class[side] as f64, (class[0] + class[1]) as f64, sides[side])))
        .filter(|(both, ..)| *both > 0.0)
        .map(|(both, class, side)| both / all * (both * all / (class * side)).log2())
        .sum();
    let chance = (counts.len() - 1) as f64 / (2.0 * all * std::f64::consts::LN_2);
    (bits - chance).max(0.0)
}

#[expect(clippy::print_stderr, reason = "the figures are for who runs it with --nocapture")]
fn assert_reveals_nothing(attack: &str, observed: &[(bool, f64)]) {
    let bits = information(observed);
    let mean = |side: bool| {
        let values: Vec<f64> = observed.iter().filter(|(right, _)| *right == side).map(|(_, v)| *v).collect();
        values.iter().sum::<f64>() / values.len() as f64
    };
    eprintln!(
        "{attack}: {} guesses, {bits:.4} bits each; right {:.2}, wrong {:.2} on average",
        observed.len(),
        mean(true),
        mean(false)
    );
    assert!(bits < SIGNAL, "{attack}: an observation gives {bits:.3} bits of a guess");
}

#[test]
fn estimates_the_information_in_distinguishable_guesses() {
    let distinguishable: Vec<(bool, f64)> = (0..400).map(|n| (n % 2 == 0, f64::from(n % 2) * 20.0)).collect();
    assert!(information(&distinguishable) > 0.9);
    let indistinguishable: Vec<(bool, f64)> =
        (0..400).map(|n| (n % 2 == 0, f64::from((n / 2) % 50))).collect();
    assert!(information(&indistinguishable) < SIGNAL / 2.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arrival_times_of_streams_reveal_no_credential() {
    let setup = setup().await;
    for host in [LISTED, SITE] {
        for kind in Kind::ALL {
            let observed = observe(|right| {
                let proxy = Arc::clone(&setup.proxy);
                async move { arrival(&proxy, host, kind, &guess(right)).await }
            });
            assert_reveals_nothing(&format!("{kind:?} from {host}"), &observed.await);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arrival_times_of_websocket_messages_reveal_no_credential() {
    let change: fn(&mut Provision) = |provision| set_credential(provision, "key", Scheme::Bearer, SECRET);
    let proxy = Arc::new(
        ProxyFixture::with(FixtureOptions { route: AUTH, change, ..FixtureOptions::default() }).await,
    );
    let observed = observe(|right| {
        let proxy = Arc::clone(&proxy);
        async move {
            let tls = tunnel(&proxy, SITE, &[b"http/1.1"]).await;
            let (mut socket, _) =
                tokio_tungstenite::client_async(format!("wss://{SITE}/ws"), tls).await.expect("101");
            let started = Instant::now();
            socket.send(Message::text(guess(right))).await.expect("send");
            let received = socket.next().await.expect("echo").expect("message");
            assert_eq!(received, Message::text(guess(right)));
            started.elapsed().as_secs_f64() * 1000.0
        }
    });
    assert_reveals_nothing("WebSocket", &observed.await);
}

/// Tests which requests are denied if the guess follows the end of the credential's public part. The end of the public
/// part and the guess together are as long as a part of a secret that the scanner finds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verdicts_reveal_no_credential() {
    const LOGIN: &str = "deployment-robot:";
    const TOKEN: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJkZXBsb3llciIsImFkbWluIjp0cnVlfQ.";
    let basic: fn(&mut Provision) =
        |provision| set_credential(provision, "key", Scheme::Basic, &format!("{LOGIN}{SECRET}"));
    let bearer: fn(&mut Provision) =
        |provision| set_credential(provision, "key", Scheme::Bearer, &format!("{TOKEN}{SECRET}"));
    let values = [("basic", LOGIN, basic), ("Bearer", TOKEN, bearer)];
    let locks = [None, Some(bottle_policy::lock_out::HITS)];
    for ((scheme, public, change), lock) in
        values.into_iter().flat_map(|value| locks.map(|lock| (value, lock)))
    {
        let authority = Authority::new("oracle").expect("authority");
        let site = site(&authority);
        let port = site.address().port();
        let yaml = format!(
            "routes:\n- host: {SITE}\n  connect_to: '127.0.0.1:{port}'\n  auth: {{scheme: {scheme}, slot: key}}\n"
        );
        let proxy = ProxyFixture::with_routes_locking(authority.pem(), yaml, change, lock).await;
        let status = async |body: String| {
            let request = Request::post("/echo").header("host", SITE);
            let request = request.body(Full::from(body).map_err(|never| match never {}).boxed_unsync());
            let mut sender = http1(&proxy, SITE).await;
            let answer = sender.send_request(request.expect("request")).await.expect("answer");
            f64::from(answer.status().as_u16())
        };
        assert!(status(format!("{public}{SECRET}")).await > 400.0, "the whole of it does not leave");
        // The end of the public part: its last four letters, and the separator before the secret.
        let end = &public[public.len() - 5..];
        let observed = observe(|right| status(format!("{end}{}", guess(right))));
        assert_reveals_nothing(&format!("verdict on {scheme}, locks: {lock:?}"), &observed.await);
    }
}

/// Tests how long a request takes if its body repeats the guess. The repetition adds up any additional time for a right
/// guess.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_durations_reveal_no_credential() {
    const REPEATS: usize = 8 << 10;
    /// Number of requests for one measurement. The measurement is the time of the fastest request.
    const TRIES: usize = 4;
    let setup = setup().await;
    // The test sends one request at a time, because concurrent work takes longer than the difference that the test
    // measures.
    let sender = tokio::sync::Mutex::new(http1(&setup.proxy, LISTED).await);
    let duration = async |right: bool| {
        let mut sender = sender.lock().await;
        let body = format!("{} ", guess_after(KNOWN_IN_TIME, right)).repeat(REPEATS);
        let mut fastest = f64::MAX;
        for _ in 0..TRIES {
            let body = Full::from(body.clone()).map_err(|never| match never {}).boxed_unsync();
            let request = Request::post("/none").header("host", LISTED).body(body).expect("request");
            sender.ready().await.expect("the connection lives on");
            let started = Instant::now();
            let answer = sender.send_request(request).await.expect("answer");
            fastest = fastest.min(started.elapsed().as_secs_f64() * 1000.0);
            answer.into_body().collect().await.expect("body");
        }
        fastest
    };
    assert_reveals_nothing("time of a request", &observe(duration).await);
}
