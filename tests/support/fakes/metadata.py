"""A server that imitates the metadata services of clouds."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Service:
    """Answers according to `pages`: by path, the required header and the answer. All other paths get 404."""

    def __init__(self):
        self.pages, self.asked = {}, 0
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                service.asked += 1
                headers, answer = service.pages.get(self.path, ({}, None))
                wanted = all(self.headers.get(name) == value for name, value in headers.items())
                is_token = self.path.endswith("/token")
                if answer is None or not wanted or is_token != (self.command == "PUT"):
                    self.send_error(404 if answer is None else 401)
                    return
                self.send_response(200)
                self.end_headers()
                self.wfile.write(answer.encode())

            do_PUT = do_GET

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        """Stop answering."""
        self.server.shutdown()
        self.server.server_close()
