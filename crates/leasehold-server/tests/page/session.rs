//! How a session begins and ends, as its browser is told.

use crate::scene::{MINUTE, acquire, holder};
use crate::stage::{Client, Stage, field};

const LINK: [(&str, &str); 3] =
    [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "document")];

#[tokio::test]
async fn a_link_of_another_site_is_opened_again_from_here_and_never_in_a_loop() {
    let stage = Stage::start().await;
    let mut client = Client::new(&stage);
    for path in ["/ns/default/lease/a?x=1", "/"] {
        let answer = client.send("GET", path, &LINK, "").await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(answer.body.contains("<meta http-equiv=\"refresh\" content=\"0\">"), "{}", answer.body);
        assert!(answer.body.contains("<a href=\"\">") && !answer.body.contains("name=\"key\""));
        let cookie = answer.all("set-cookie").find(|cookie| cookie.starts_with("leasehold_arrived=yes;")).unwrap();
        assert!(cookie.contains("SameSite=Lax"), "{cookie}");
        // A browser that says the same again has no session, and is asked for a key.
        let answer = client.send("GET", path, &LINK, "").await;
        assert!(!answer.body.contains("http-equiv"), "{}", answer.body);
        assert!(answer.status == 303 || answer.body.contains("name=\"key\""), "{}", answer.body);
        assert!(answer.all("set-cookie").any(|cookie| cookie.starts_with("leasehold_arrived=;")), "{}", answer.head);
    }
    // What is no link is not opened again.
    for (name, value) in [("Sec-Fetch-Site", "same-origin"), ("Sec-Fetch-Mode", "cors"), ("Sec-Fetch-Dest", "iframe")] {
        let headers = LINK.map(|(header, usual)| (header, if header == name { value } else { usual }));
        let answer = Client::new(&stage).send("GET", "/ns/default/leases", &headers, "").await;
        assert_eq!(answer.status, 303, "{name} {value}");
    }
    // With a session the page is there at once.
    let mut client = Client::signed_in(&stage, &stage.key("ada", "read", &["*"], None).await).await;
    assert!(client.send("GET", "/ns/default/leases", &LINK, "").await.body.contains("<h1>Leases</h1>"));
}

#[tokio::test]
async fn a_session_that_has_ended_is_told_and_leads_back_to_the_page() {
    let stage = Stage::start().await;
    acquire(&stage.leases(), "a", holder("box-1", "first", 1), "24h").await;
    let key = stage.key("ada", "read,operate", &["*"], None).await;
    let mut client = Client::new(&stage);
    assert!(!client.get("/").await.body.contains("has ended"), "there was none");
    client.sign_in(&key).await;
    let page = client.get("/ns/default/lease/a").await.body;
    let (token, epoch) = (field(&page, "token"), field(&page, "epoch"));
    stage.clock.advance(MINUTE * 60 * 13);
    let fields = [("token", token.as_str()), ("epoch", &epoch), ("order", "pause"), ("why", "x")];
    let answer = client.post("/ns/default/lease/a", &fields).await;
    assert_eq!(answer.status, 401);
    assert!(answer.body.contains("Your session has ended") && answer.body.contains("nothing was done"));
    assert!(!answer.body.contains("Authorization"), "{}", answer.body);
    assert!(answer.body.contains("href=\"/?next=/ns/default/lease/a\""), "{}", answer.body);
    // A browser forgets the cookie of a session at the end of its time.
    client.set_cookie("leasehold_session", "");
    let to = client.get("/ns/default/lease/a").await.header("location").unwrap().to_owned();
    let page = client.get(&to).await.body;
    assert!(page.contains("Your session has ended") && field(&page, "next") == "/ns/default/lease/a", "{page}");
    let fields = [("token", field(&page, "token")), ("key", key.clone()), ("next", field(&page, "next"))];
    let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
    assert_eq!(client.post("/sign-in", &fields).await.header("location"), Some("/ns/default/lease/a"));
    // Whoever signs out knows.
    let token = field(&client.get("/ns/default/leases").await.body, "token");
    client.post("/sign-out", &[("token", &token)]).await;
    assert!(!client.get("/").await.body.contains("has ended"));
}

#[tokio::test]
async fn a_key_that_has_expired_leads_back_to_the_page_too() {
    let stage = Stage::start().await;
    let mut client = Client::signed_in(&stage, &stage.key("ada", "read", &["*"], Some(MINUTE)).await).await;
    stage.clock.advance(MINUTE * 2);
    let answer = client.get("/ns/default/leases?q=x").await;
    assert!(
        answer.status == 401 && answer.body.contains("href=\"/?next=/ns/default/leases%3Fq%3Dx\""),
        "{}",
        answer.body
    );
}
