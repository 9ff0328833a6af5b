//! A strict stand-in for Firestore, from the documented semantics of its REST interface.
//!
//! Promise: preconditions, commit times and errors as documented; what our client has no business to send (an unknown
//! field, a reserved id, a missing token) is refused; what was committed survives a kill. Non-promise: it is not
//! Firestore, and shows only that our requests mean what the documentation says.

mod records;
mod requests;
mod tokens;

use crate::{Server, Spec, free_port};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use records::Records;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const PORT: &str = "LEASEHOLD_FIRESTORE_PORT";
const FOLDER: &str = "LEASEHOLD_FIRESTORE_FOLDER";

/// The project that it has.
pub(crate) const PROJECT: &str = "demo";

/// Starts it as a process of its own: this test program again, told to run only the test of this name, which calls
/// [`serve_firestore_if_asked`].
pub fn firestore_stand_in(test: &str) -> Server {
    let (port, folder) = (free_port(), Server::temporary_folder());
    tokens::make_keys(folder.path());
    let spec = Spec::new(std::env::current_exe().unwrap(), port)
        .args([test, "--exact", "--nocapture"])
        .env(PORT, port.to_string())
        .env(FOLDER, folder.path().display().to_string());
    Server::start(spec, folder)
}

/// Serves, and does not return, if this process was started for that.
pub fn serve_firestore_if_asked() {
    let (Ok(port), Some(folder)) = (std::env::var(PORT), std::env::var_os(FOLDER)) else { return };
    let folder = PathBuf::from(folder);
    let shared = Arc::new(Mutex::new(StandIn { records: Records::load(&folder), tokens: Vec::new(), folder }));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await.unwrap();
        axum::serve(listener, Router::new().fallback(answer).with_state(shared)).await.unwrap();
    });
}

/// A service account's key file for a stand-in that has this folder. Its key is refused while `revoked` is in the folder.
pub fn service_account(folder: &Path) -> PathBuf {
    let key = std::fs::read_to_string(folder.join("key.pem")).unwrap();
    let account = json!({
        "type": "service_account",
        "project_id": PROJECT,
        "private_key_id": tokens::KEY_ID,
        "private_key": key,
        "client_email": tokens::EMAIL,
    });
    let path = folder.join("account.json");
    std::fs::write(&path, account.to_string()).unwrap();
    path
}

/// The key file of a service account with a key that is new each time.
pub fn new_service_account(folder: &Path) -> PathBuf {
    tokens::make_keys(folder);
    service_account(folder)
}

struct StandIn {
    records: Records,
    tokens: Vec<String>,
    folder: PathBuf,
}

/// A refusal, in Google's form.
struct Refusal(StatusCode, &'static str, String);

fn invalid(what: impl Into<String>) -> Refusal {
    Refusal(StatusCode::BAD_REQUEST, "INVALID_ARGUMENT", what.into())
}

async fn answer(
    State(shared): State<Arc<Mutex<StandIn>>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let mut stand_in = shared.lock().unwrap();
    match stand_in.call(&method, &uri, &headers, &body) {
        Ok(value) => ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response(),
        Err(Refusal(status, code, message)) => {
            let error = json!({ "error": { "code": status.as_u16(), "message": message, "status": code } });
            (status, [(header::CONTENT_TYPE, "application/json")], error.to_string()).into_response()
        }
    }
}

impl StandIn {
    /// A token is checked once: openssl is slow.
    fn knows(&mut self, token: &str) -> bool {
        let is_known = token == "owner" || self.tokens.iter().any(|known| known == token);
        if !is_known && tokens::is_good(token, &self.folder) {
            self.tokens.push(token.to_owned());
            return true;
        }
        is_known
    }

    fn call(&mut self, method: &Method, uri: &Uri, headers: &HeaderMap, body: &Bytes) -> Result<Value, Refusal> {
        let token = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = token.and_then(|value| value.strip_prefix("Bearer "));
        let is_revoked = self.folder.join("revoked").exists();
        if is_revoked || !token.is_some_and(|token| self.knows(token)) {
            let message = "Request had invalid authentication credentials.";
            return Err(Refusal(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", message.into()));
        }
        let path = uri.path().strip_prefix("/v1/projects/").filter(|_| method == Method::POST && uri.query().is_none());
        let Some((resource, call)) = path.and_then(|path| path.rsplit_once(':')) else {
            return Err(Refusal(StatusCode::NOT_FOUND, "", "no such method".into()));
        };
        if !is(headers, "application/json") {
            return Err(invalid("the request is not JSON"));
        }
        let question: Value = serde_json::from_slice(body).map_err(|e| invalid(e.to_string()))?;
        let (database, parent) = resource.split_once("/documents").unwrap_or((resource, ""));
        if database != format!("{PROJECT}/databases/(default)") {
            let message = format!("The database (default) does not exist for project {database}");
            return Err(Refusal(StatusCode::NOT_FOUND, "NOT_FOUND", message));
        }
        match (call, parent) {
            ("batchGet", "") => self.records.batch_get(&question),
            ("commit", "") => self.records.commit(&question),
            ("runQuery", parent) => self.records.run_query(parent.trim_start_matches('/'), &question),
            _ => Err(Refusal(StatusCode::NOT_FOUND, "", "no such method".into())),
        }
    }
}

fn is(headers: &HeaderMap, content: &str) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| value == content)
}
