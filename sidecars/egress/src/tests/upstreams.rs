//! The upstream side: which addresses and certificates the proxy accepts, and which connections it pools.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bottle_policy::decide::Reason;
use bottle_protocol::session::bundle::Provision;
use bottle_test_support::skip;
use bottle_test_support::upstream::{Leaf, Site};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::client::{get2, http2, read};
use super::fixture::{AUTH, FixtureOptions, ProxyFixture, SITE};

const URL: &str = "https://api.example.com/a";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_untrusted_certificates_with_502() {
    for site in [Site { leaf: Leaf::Expired, ..Site::named(&[SITE]) }, Site::named(&["other.example.com"])] {
        let proxy = ProxyFixture::with(FixtureOptions { site, ..FixtureOptions::default() }).await;
        let answer = proxy.curl(&[URL]).await;
        assert_eq!(
            (answer.status(), answer.header("x-bottle-reason")),
            (502, Some("upstream-untrusted".into()))
        );
        assert!(proxy.site.visits().is_empty());
    }
    let foreign =
        FixtureOptions { change: |provision| provision.upstream_roots.clear(), ..FixtureOptions::default() };
    let proxy = ProxyFixture::with(foreign).await;
    assert_eq!(proxy.curl(&[URL]).await.header("x-bottle-reason").as_deref(), Some("upstream-untrusted"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn describes_tls_errors_with_the_next_step() {
    let named = |name: &str| Site::named(&[name]);
    for (site, roots, words) in [
        (
            Site { leaf: Leaf::Expired, ..named(SITE) },
            true,
            "it expired on 1991-01-01; the host has to renew it",
        ),
        (named("other.example.com"), true, "it is for other.example.com; the route may need another `host`"),
        (named(SITE), false, "its issuer is not trusted; if the host is right, the user can add"),
        (
            Site { tls: false, ..named(SITE) },
            true,
            "it does not answer with TLS on this port; the route may need",
        ),
    ] {
        let change: fn(&mut Provision) =
            if roots { |_| {} } else { |provision| provision.upstream_roots.clear() };
        let proxy = ProxyFixture::with(FixtureOptions { site, change, ..FixtureOptions::default() }).await;
        let answer = proxy.curl(&[URL]).await;
        assert_eq!(answer.status(), 502);
        let sentence = answer.json()["sentence"].to_string();
        assert!(sentence.contains(words), "{sentence}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_a_failed_upstream_with_502_and_recovers() {
    let more = "- host: down.example.com\n  connect_to: '127.0.0.1:1'\n";
    let proxy = ProxyFixture::with(FixtureOptions { more_routes: more, ..FixtureOptions::default() }).await;
    for url in ["https://down.example.com/", "https://api.example.com/close"] {
        let answer = proxy.curl(&[url]).await;
        assert_eq!(
            (answer.status(), answer.header("x-bottle-reason")),
            (502, Some("upstream-unreachable".into()))
        );
    }
    assert_eq!(proxy.curl(&[URL]).await.status(), 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denies_forbidden_addresses_from_every_source() {
    // The address 9.9.9.77 is forbidden only because it is an address of the host.
    let more = "- host: 9.9.9.77\n- host: ip6-localhost\n  ports: [80, 443]\n";
    let change: fn(&mut Provision) =
        |provision| provision.host_addresses = vec!["9.9.9.77".parse().expect("address")];
    let proxy =
        ProxyFixture::with(FixtureOptions { more_routes: more, change, ..FixtureOptions::default() }).await;
    let named = std::fs::read_to_string("/etc/hosts").is_ok_and(|hosts| hosts.contains("ip6-localhost"));
    for url in ["https://9.9.9.77/", "https://ip6-localhost/", "http://ip6-localhost/"] {
        if url.contains("ip6") && !named {
            skip::aloud("addresses that are forbidden", &"this machine's /etc/hosts names no ip6-localhost");
            continue;
        }
        // The certificate in the tunnel is for the name that the client sends. This test does not check whether the
        // client accepts the certificate.
        let answer = proxy.curl(&["--insecure", url]).await;
        assert_eq!(
            (answer.status(), answer.header("x-bottle-reason")),
            (403, Some("address-forbidden".into())),
            "{url}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connects_to_the_users_machine_as_host() {
    let more = "- host: own.example.com\n  connect_to: 'host:{site}'\n";
    let site = Site::named(&[SITE, "own.example.com"]);
    let proxy =
        ProxyFixture::with(FixtureOptions { site, more_routes: more, ..FixtureOptions::default() }).await;
    let answer = proxy.curl(&["https://own.example.com/a"]).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(proxy.site.visits().pop().expect("visit").host, "own.example.com");
}

/// Starts a TCP relay to `to`. Returns its port and the counter of its connections.
async fn counting(to: std::net::SocketAddr) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let port = listener.local_addr().expect("address").port();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                let mut site = TcpStream::connect(to).await.expect("site");
                let _ = tokio::io::copy_bidirectional(&mut client, &mut site).await;
            });
        }
    });
    (port, count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pools_connections_by_target() {
    use bottle_test_support::upstream::Alpn;
    for alpn in [Alpn::Both, Alpn::Http1] {
        let site = Site { alpn, ..Site::named(&[SITE, "relayed.example.com"]) };
        let proxy = ProxyFixture::with(FixtureOptions { site, ..FixtureOptions::default() }).await;
        let (first, first_count) = counting(proxy.site.address()).await;
        let (second, second_count) = counting(proxy.site.address()).await;
        let route = |port| format!("- host: relayed.example.com\n  connect_to: '127.0.0.1:{port}'\n");
        proxy.reload(2, AUTH, &route(first)).expect("live");
        let host = "relayed.example.com";
        let mut sender = http2(&proxy, host).await;
        for _ in 0..5 {
            let answer = sender.send_request(get2(host, "/a")).await.expect("answer");
            assert_eq!(read(answer).await.0, 200);
        }
        assert_eq!(first_count.load(Ordering::SeqCst), 1, "{alpn:?}");
        proxy.reload(3, AUTH, &route(second)).expect("live");
        let answer = sender.send_request(get2(host, "/a")).await.expect("answer");
        assert_eq!(read(answer).await.0, 200);
        assert_eq!((first_count.load(Ordering::SeqCst), second_count.load(Ordering::SeqCst)), (1, 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dials_through_the_corporate_proxy_with_its_password() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let port = listener.local_addr().expect("address").port();
    let proxy = ProxyFixture::open().await;
    let site = proxy.site.address();
    let seen = tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.expect("accept");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(client.read_u8().await.expect("head"));
        }
        let mut site = TcpStream::connect(site).await.expect("site");
        client.write_all(b"HTTP/1.1 200 Fine\r\nVia: test\r\n\r\n").await.expect("answer");
        tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut site).await });
        String::from_utf8(head).expect("ASCII")
    });
    let proxy =
        ProxyFixture::behind_corporate_proxy(proxy, &format!("http://user:pass@127.0.0.1:{port}")).await;
    assert_eq!(proxy.curl(&[URL]).await.status(), 200);
    let head = seen.await.expect("proxy");
    assert!(head.starts_with("CONNECT api.example.com:443 HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("Proxy-Authorization: Basic dXNlcjpwYXNz\r\n"), "{head}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_passthrough_host_shows_its_own_certificate_and_must_match_the_sni() {
    let proxy =
        ProxyFixture::with(FixtureOptions { route: "inspect: false", ..FixtureOptions::default() }).await;
    let ca = proxy.directory.path().join("site.pem");
    proxy.site.write_ca(&ca).expect("ca");
    let ca = ca.to_str().expect("path");
    for answer in
        [proxy.curl(&["--cacert", ca, URL]).await, proxy.curl_transparent(&["--cacert", ca, URL]).await]
    {
        assert_eq!(answer.status(), 200);
    }
    let to = format!("{SITE}:443");
    let fronted = proxy
        .curl(&[
            "--insecure",
            "--connect-to",
            &format!("evil.example.org:443:{to}"),
            "https://evil.example.org/",
        ])
        .await;
    assert!(fronted.error().contains("SSL") || fronted.error().contains("TLS"), "{}", fronted.error());
    assert_eq!(proxy.denial().await.reason, Reason::AuthorityMismatch);
    assert_eq!(proxy.site.visits().len(), 2);
}
