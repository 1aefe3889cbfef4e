"""What tasks say: generators and text formats that more than one actor kind needs (sources, graders, pre-training
text). No actor."""
