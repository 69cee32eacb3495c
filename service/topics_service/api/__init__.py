"""The service calls behind every door: gRPC servicers and the HTTP gateway both go through `topics.TopicsApi`."""
