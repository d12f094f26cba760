//! Runs this machine's Java in a bottle: its HTTP clients and Maven. These clients and Maven read neither the proxy
//! variables nor the variables for certificates.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use bottle_test_support::authority::{Alpn, Authority, Leaf};
use bottle_test_support::body::{Body, whole};
use bottle_test_support::home::TestHome;
use bottle_test_support::program::Outcome;
use bottle_test_support::server::{Server, handler};
use bottle_test_support::skip;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};

/// The time limit of a command in the bottle. On a busy machine, Java needs seconds to compile a file.
const PATIENCE: Duration = Duration::from_secs(240);

const TLS: &str = "java.site.example";
const PLAIN: &str = "plain.site.example";

/// Requests each URL with both clients of the JDK.
const FETCH: &str = r#"
import java.net.*;
import java.net.http.*;
public class Fetch {
  public static void main(String[] urls) throws Exception {
    var client = HttpClient.newHttpClient();
    for (var url : urls) {
      var text = HttpRequest.BodyPublishers.ofString("x".repeat(100_000));
      for (var request : new HttpRequest.Builder[] {HttpRequest.newBuilder(), HttpRequest.newBuilder().POST(text)}) {
        var answer = client.send(request.uri(URI.create(url)).build(), HttpResponse.BodyHandlers.ofString());
        show(answer.version().toString(), answer.statusCode(), answer.headers().firstValue("x-bottle-reason").orElse(answer.body()));
      }
      var old = (HttpURLConnection) new URL(url).openConnection();
      var reason = old.getHeaderField("x-bottle-reason");
      show("HttpURLConnection", old.getResponseCode(), reason != null ? reason : new String(old.getInputStream().readAllBytes()));
    }
  }
  static void show(String client, int status, String text) {
    System.out.println(client + " " + status + " " + text);
  }
}
"#;

/// A Maven project. Only the repository of the fake site has the parent of this project.
const CHILD: &str = "<project><modelVersion>4.0.0</modelVersion><parent><groupId>example</groupId>\
    <artifactId>parent</artifactId><version>1</version></parent><artifactId>child</artifactId>\
    <packaging>pom</packaging><repositories><repository><id>site</id><url>https://java.site.example/m2</url>\
    </repository></repositories></project>";
const PARENT: &str = "<project><modelVersion>4.0.0</modelVersion><groupId>example</groupId>\
    <artifactId>parent</artifactId><version>1</version><packaging>pom</packaging></project>";

/// Answers with the request's method, version and body size, or with a file for Maven.
async fn answer(_: Arc<()>, request: Request<Incoming>) -> Option<Response<Body>> {
    let (parts, body) = request.into_parts();
    let size = body.collect().await.ok()?.to_bytes().len();
    let path = parts.uri.path();
    if path == "/m2/example/parent/1/parent-1.pom" {
        return Some(Response::new(whole(PARENT)));
    }
    let mut response = Response::new(whole(format!("{} {:?} {size}", parts.method, parts.version)));
    if path.starts_with("/m2/") {
        *response.status_mut() = StatusCode::NOT_FOUND;
    }
    Some(response)
}

/// A bottle `java` on the Linux backend, with routes to a site.
struct Scene {
    home: TestHome,
    _sites: [Server; 2],
}

impl Scene {
    fn start() -> Result<Self> {
        let authority = Authority::new("java")?;
        let tls = authority.server_config(&[TLS], Leaf::Valid, Alpn::Both)?;
        let sites = [Some(tls), None].map(|tls| Server::start(0, tls, handler(Arc::default(), answer)));
        let [tls, plain] = sites;
        let (tls, plain) = (tls?, plain?);
        let mut home = TestHome::new()?;
        let ca = home.outside("ca.pem");
        authority.write_pem(&ca)?;
        home.agent("java", "---\nbottle: java\n---\n")?;
        home.bottle(
            "java",
            &format!(
                "---\nbackend: linux\nagent_provider: {{template: command, command: [sleep, '900']}}\n\
                 egress:\n  ca_bundle: {:?}\n  routes:\n    - {{host: {TLS}, connect_to: '{}'}}\n    \
                 - {{host: {PLAIN}, ports: [80], connect_to: '{}'}}\n---\n",
                ca.display(),
                tls.address(),
                plain.address(),
            ),
        )?;
        let start = ["start", "java", "--label", "java", "--detach", "--yes", "-q"];
        let _ = home.program(start)?.deadline(PATIENCE).run()?.expect_code(0);
        Ok(Self { home, _sites: [tls, plain] })
    }

    fn shell(&self, script: &str) -> Result<Outcome> {
        let arguments = ["exec", "java", "--", "/bin/sh", "-c", script];
        Ok(self.home.program(arguments)?.deadline(PATIENCE).run()?.expect_code(0))
    }
}

#[test]
fn java_programs_reach_hosts_and_trust_the_bottles_authority() -> Result<()> {
    let test = "Java in a bottle";
    if Command::new("/usr/bin/javac").arg("-version").output().is_err() {
        skip::aloud(test, &"there is no /usr/bin/javac here");
        return Ok(());
    }
    if !TestHome::new()?.runs(test, "linux")? {
        return Ok(());
    }
    let scene = Scene::start()?;
    let urls = format!("https://{TLS}/a http://{PLAIN}/a https://other.example/a");
    let ran =
        scene.shell(&format!("cat >Fetch.java <<'END'\n{FETCH}END\n/usr/bin/java Fetch.java {urls}"))?;
    assert_eq!(
        ran.stdout,
        "HTTP_2 200 GET HTTP/2.0 0\nHTTP_2 200 POST HTTP/2.0 100000\nHttpURLConnection 200 GET HTTP/2.0 0\n\
         HTTP_1_1 200 GET HTTP/1.1 0\nHTTP_1_1 200 POST HTTP/1.1 100000\nHttpURLConnection 200 GET HTTP/1.1 0\n\
         HTTP_2 403 host-not-allowed\nHTTP_2 403 host-not-allowed\nHttpURLConnection 403 host-not-allowed\n",
        "{}",
        ran.transcript()
    );
    // Java prints a line when it reads `JAVA_TOOL_OPTIONS`.
    let store =
        fs::exists("/etc/ssl/certs/java/cacerts")? || fs::exists("/etc/pki/ca-trust/extracted/java/cacerts")?;
    assert_eq!(ran.stderr.contains("JAVA_TOOL_OPTIONS"), !store, "{}", ran.stderr);

    // `keytool` accepts the default password and the checksum of the truststore.
    let listed =
        scene.shell("keytool -list -keystore /run/bottle/truststore.jks -storepass changeit")?.stdout;
    let bundle = scene.shell("grep -c 'BEGIN CERT' /run/bottle/ca-bundle.pem")?.stdout;
    assert!(listed.contains(&format!("Your keystore contains {} entr", bundle.trim())), "{bundle} {listed}");

    if !Path::new("/usr/bin/mvn").exists() {
        skip::aloud("Maven in a bottle", &"there is no /usr/bin/mvn here");
        return Ok(());
    }
    let built = scene.shell(&format!("echo '{CHILD}' >pom.xml && mvn -B -ntp validate"))?;
    assert!(built.stdout.contains("BUILD SUCCESS"), "{}", built.transcript());
    Ok(())
}
